"""The DataStream surface of PyFlink 2.3: modules with their names, classes with their methods, and what is left out."""

from __future__ import annotations

MODULES: dict[str, str] = {
    "common": (
        "Types TypeInformation Row RowKind Time Duration Instant Configuration WatermarkStrategy Encoder "
        "SimpleStringSchema SerializationSchema DeserializationSchema JobClient JobStatus JobExecutionResult JobID "
        "RestartStrategies ExecutionConfig CompletableFuture"
    ),
    "common.typeinfo": "Types TypeInformation",
    "common.types": "Row RowKind",
    "common.time": "Time Duration Instant",
    "common.configuration": "Configuration",
    "common.serialization": "Encoder SimpleStringSchema SerializationSchema DeserializationSchema",
    "common.watermark_strategy": "WatermarkStrategy TimestampAssigner",
    "common.restart_strategy": "RestartStrategies",
    "common.job_client": "JobClient",
    "common.job_status": "JobStatus",
    "common.job_execution_result": "JobExecutionResult",
    "common.execution_config": "ExecutionConfig",
    "common.completable_future": "CompletableFuture",
    "metrics": "Counter Meter Distribution MetricGroup",
    "datastream": (
        "StreamExecutionEnvironment RuntimeExecutionMode DataStream KeyedStream WindowedStream AllWindowedStream "
        "ConnectedStreams BroadcastStream BroadcastConnectedStream DataStreamSink CloseableIterator AsyncDataStream "
        "MapFunction FlatMapFunction FilterFunction ReduceFunction AggregateFunction KeySelector Partitioner "
        "CoMapFunction CoFlatMapFunction ProcessFunction KeyedProcessFunction CoProcessFunction "
        "KeyedCoProcessFunction BroadcastProcessFunction KeyedBroadcastProcessFunction WindowFunction "
        "AllWindowFunction ProcessWindowFunction ProcessAllWindowFunction AsyncFunction AsyncRetryStrategy "
        "SourceFunction SinkFunction RuntimeContext TimerService TimeDomain OutputTag Window WindowAssigner "
        "MergingWindowAssigner Trigger TriggerResult TimeWindow CountWindow GlobalWindow CheckpointConfig "
        "CheckpointingMode ExternalizedCheckpointRetention CheckpointStorage JobManagerCheckpointStorage "
        "FileSystemCheckpointStorage CustomCheckpointStorage StateBackend HashMapStateBackend "
        "EmbeddedRocksDBStateBackend CustomStateBackend PredefinedOptions SlotSharingGroup MemorySize CachedDataStream"
    ),
    "datastream.functions": (
        "Function MapFunction FlatMapFunction FilterFunction ReduceFunction AggregateFunction KeySelector Partitioner "
        "CoMapFunction CoFlatMapFunction ProcessFunction KeyedProcessFunction CoProcessFunction "
        "KeyedCoProcessFunction BroadcastProcessFunction KeyedBroadcastProcessFunction WindowFunction "
        "AllWindowFunction ProcessWindowFunction ProcessAllWindowFunction AsyncFunction AsyncRetryStrategy "
        "RuntimeContext SourceFunction SinkFunction"
    ),
    "datastream.state": (
        "State ValueState ListState MapState ReducingState AggregatingState BroadcastState ReadOnlyBroadcastState "
        "StateDescriptor ValueStateDescriptor ListStateDescriptor MapStateDescriptor ReducingStateDescriptor "
        "AggregatingStateDescriptor OperatorStateStore StateTtlConfig AppendingState MergingState"
    ),
    "datastream.window": (
        "TumblingEventTimeWindows TumblingProcessingTimeWindows SlidingEventTimeWindows SlidingProcessingTimeWindows "
        "EventTimeSessionWindows ProcessingTimeSessionWindows SessionWindowTimeGapExtractor "
        "CountTumblingWindowAssigner CountSlidingWindowAssigner GlobalWindows WindowAssigner MergingWindowAssigner "
        "EventTimeTrigger ProcessingTimeTrigger ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger "
        "CountTrigger PurgingTrigger NeverTrigger Trigger TriggerResult Window TimeWindow CountWindow GlobalWindow "
        "TimeWindowSerializer CountWindowSerializer DynamicEventTimeSessionWindows DynamicProcessingTimeSessionWindows"
    ),
    "datastream.output_tag": "OutputTag",
    "datastream.time_domain": "TimeDomain",
    "datastream.timerservice": "TimerService",
    "datastream.execution_mode": "RuntimeExecutionMode",
    "datastream.data_stream": "DataStream KeyedStream WindowedStream ConnectedStreams CloseableIterator",
    "datastream.stream_execution_environment": "StreamExecutionEnvironment",
    "datastream.slot_sharing_group": "SlotSharingGroup MemorySize",
    "datastream.state_backend": "HashMapStateBackend EmbeddedRocksDBStateBackend PredefinedOptions CustomStateBackend",
    "datastream.checkpoint_config": "CheckpointConfig ExternalizedCheckpointRetention",
    "datastream.checkpoint_storage": "JobManagerCheckpointStorage FileSystemCheckpointStorage CustomCheckpointStorage",
    "datastream.checkpointing_mode": "CheckpointingMode",
    "datastream.externalized_checkpoint_retention": "ExternalizedCheckpointRetention",
    "datastream.async_data_stream": "AsyncDataStream",
    "datastream.async_retry_strategies": "AsyncRetryStrategy",
    "datastream.async_retry_predicates": "empty_result_predicate has_exception_predicate",
    "datastream.connectors": "DeliveryGuarantee Sink Source",
    "datastream.connectors.base": "DeliveryGuarantee Sink Source StreamTransformer SupportsPreprocessing",
    "datastream.connectors.number_seq": "NumberSequenceSource",
    "datastream.connectors.kafka": (
        "KafkaSource KafkaSourceBuilder KafkaSink KafkaSinkBuilder KafkaRecordSerializationSchema "
        "KafkaOffsetsInitializer KafkaOffsetResetStrategy KafkaTopicPartition FlinkKafkaConsumer FlinkKafkaProducer "
        "KafkaRecordSerializationSchemaBuilder KafkaTopicSelector"
    ),
    "datastream.connectors.file_system": (
        "FileSource FileSink StreamFormat BulkFormat BucketAssigner RollingPolicy OutputFileConfig FileCompactor "
        "FileCompactStrategy StreamingFileSink"
    ),
    "datastream.formats.json": "JsonRowDeserializationSchema JsonRowSerializationSchema",
    "datastream.formats.avro": "AvroRowDeserializationSchema AvroRowSerializationSchema AvroSchema AvroInputFormat",
    "datastream.formats.csv": "CsvSchema CsvReaderFormat CsvBulkWriters",
    "datastream.formats.parquet": "ParquetColumnarRowInputFormat ParquetBulkWriters AvroParquetReaders",
}
"""Below `pyflink`: the public names of each module."""

ABSENT_MODULES = (
    "datastream.connectors.jdbc",
    "datastream.connectors.elasticsearch",
    "datastream.connectors.pulsar",
    "datastream.connectors.kinesis",
    "datastream.connectors.rabbitmq",
    "datastream.connectors.cassandra",
    "datastream.connectors.hybrid_source",
    "datastream.formats.orc",
    "java_gateway",
    "table",
)

METHODS: dict[str, str] = {
    "datastream.StreamExecutionEnvironment": (
        "get_execution_environment get_config configure set_parallelism get_parallelism set_max_parallelism "
        "get_max_parallelism set_default_local_parallelism get_default_local_parallelism set_runtime_mode "
        "set_buffer_timeout get_buffer_timeout disable_operator_chaining is_chaining_enabled enable_checkpointing "
        "get_checkpoint_config get_checkpoint_interval get_checkpointing_mode get_checkpointing_consistency_mode "
        "is_unaligned_checkpoints_enabled is_force_unaligned_checkpoints enable_changelog_state_backend "
        "is_changelog_state_backend_enabled set_default_savepoint_directory get_default_savepoint_directory "
        "add_python_file set_python_requirements add_python_archive set_python_executable add_jars add_classpaths "
        "register_cached_file register_slot_sharing_group from_collection from_source add_source create_input execute "
        "execute_async get_execution_plan close"
    ),
    "datastream.DataStream": (
        "name get_name uid set_uid_hash set_parallelism set_max_parallelism force_non_parallel get_type "
        "get_execution_environment get_execution_config set_buffer_timeout start_new_chain disable_chaining "
        "slot_sharing_group set_description cache map flat_map filter key_by process union connect project window_all "
        "shuffle rebalance rescale forward broadcast partition_custom assign_timestamps_and_watermarks get_side_output "
        "add_sink sink_to print execute_and_collect"
    ),
    "datastream.KeyedStream": (
        "map flat_map filter reduce process sum min max min_by max_by window count_window connect key_by"
    ),
    "datastream.WindowedStream": "trigger allowed_lateness side_output_late_data reduce aggregate apply process",
    "datastream.AllWindowedStream": "trigger allowed_lateness side_output_late_data reduce aggregate apply process",
    "datastream.ConnectedStreams": "key_by map flat_map process",
    "datastream.BroadcastConnectedStream": "process",
    "datastream.DataStreamSink": (
        "name uid set_uid_hash set_parallelism set_description disable_chaining slot_sharing_group"
    ),
    "datastream.AsyncDataStream": "ordered_wait unordered_wait ordered_wait_with_retry unordered_wait_with_retry",
    "datastream.AsyncRetryStrategy": "no_restart fixed_delay exponential_backoff",
    "datastream.functions.AggregateFunction": "create_accumulator add get_result merge open close",
    "datastream.functions.KeyedProcessFunction": "process_element on_timer open close Context OnTimerContext",
    "datastream.functions.KeyedCoProcessFunction": "process_element1 process_element2 on_timer",
    "datastream.functions.KeyedBroadcastProcessFunction": (
        "process_element process_broadcast_element on_timer Context ReadOnlyContext OnTimerContext"
    ),
    "datastream.functions.ProcessWindowFunction": "process clear Context",
    "datastream.functions.AsyncFunction": "async_invoke timeout",
    "datastream.TimerService": (
        "current_processing_time current_watermark register_processing_time_timer delete_processing_time_timer "
        "register_event_time_timer delete_event_time_timer"
    ),
    "datastream.RuntimeContext": (
        "get_state get_list_state get_map_state get_reducing_state get_aggregating_state get_task_name "
        "get_task_name_with_subtasks get_number_of_parallel_subtasks get_max_number_of_parallel_subtasks "
        "get_index_of_this_subtask get_attempt_number get_job_parameter get_metrics_group"
    ),
    "metrics.MetricGroup": "add_group counter gauge meter distribution",
    "datastream.state.ValueState": "value update clear",
    "datastream.state.ListState": "get add add_all update clear __iter__",
    "datastream.state.MapState": (
        "get put put_all remove contains items keys values is_empty clear __getitem__ __setitem__ __delitem__ "
        "__contains__ __iter__"
    ),
    "datastream.state.BroadcastState": (
        "get contains items keys values is_empty put put_all remove __getitem__ __setitem__ __delitem__ __contains__ "
        "__iter__"
    ),
    "datastream.state.ReducingState": "add get clear",
    "datastream.state.AggregatingState": "add get clear",
    "datastream.state.ValueStateDescriptor": "get_name enable_time_to_live",
    "datastream.state.OperatorStateStore": "get_broadcast_state",
    "datastream.state.StateTtlConfig": (
        "new_builder get_update_type get_state_visibility get_ttl get_ttl_time_characteristic is_enabled "
        "get_cleanup_strategies UpdateType StateVisibility TtlTimeCharacteristic"
    ),
    "datastream.CheckpointConfig": (
        "is_checkpointing_enabled get_checkpointing_mode set_checkpointing_mode get_checkpoint_interval "
        "set_checkpoint_interval get_checkpoint_timeout set_checkpoint_timeout get_min_pause_between_checkpoints "
        "set_min_pause_between_checkpoints get_max_concurrent_checkpoints set_max_concurrent_checkpoints "
        "get_tolerable_checkpoint_failure_number set_tolerable_checkpoint_failure_number "
        "get_externalized_checkpoint_retention set_externalized_checkpoint_retention get_aligned_checkpoint_timeout "
        "set_aligned_checkpoint_timeout get_alignment_timeout set_alignment_timeout is_fail_on_checkpointing_errors "
        "set_fail_on_checkpointing_errors is_externalized_checkpoints_enabled is_unaligned_checkpoints_enabled "
        "enable_unaligned_checkpoints disable_unaligned_checkpoints set_force_unaligned_checkpoints "
        "is_force_unaligned_checkpoints"
    ),
    "datastream.CheckpointingMode": "EXACTLY_ONCE AT_LEAST_ONCE",
    "datastream.ExternalizedCheckpointRetention": (
        "DELETE_ON_CANCELLATION RETAIN_ON_CANCELLATION NO_EXTERNALIZED_CHECKPOINTS"
    ),
    "datastream.EmbeddedRocksDBStateBackend": (
        "set_db_storage_paths get_db_storage_paths is_incremental_checkpoints_enabled set_predefined_options "
        "get_predefined_options set_options get_options set_number_of_transfer_threads get_number_of_transfer_threads"
    ),
    "datastream.PredefinedOptions": (
        "DEFAULT SPINNING_DISK_OPTIMIZED SPINNING_DISK_OPTIMIZED_HIGH_MEM FLASH_SSD_OPTIMIZED"
    ),
    "datastream.RuntimeExecutionMode": "STREAMING BATCH AUTOMATIC",
    "common.JobClient": (
        "get_job_id get_job_status cancel stop_with_savepoint trigger_savepoint get_accumulators "
        "get_job_execution_result"
    ),
    "common.CompletableFuture": "result done exception cancel",
    "common.RestartStrategies": "no_restart fall_back_restart fixed_delay_restart failure_rate_restart",
    "common.JobStatus": (
        "CREATED RUNNING FAILING FAILED CANCELLING CANCELED FINISHED RESTARTING SUSPENDED RECONCILING"
    ),
    "common.Types": (
        "STRING BYTE BOOLEAN SHORT INT LONG FLOAT DOUBLE CHAR BIG_INT BIG_DEC INSTANT SQL_DATE SQL_TIME SQL_TIMESTAMP "
        "PICKLED_BYTE_ARRAY ROW ROW_NAMED TUPLE PRIMITIVE_ARRAY BASIC_ARRAY OBJECT_ARRAY MAP LIST"
    ),
    "common.Time": "milliseconds seconds minutes hours days",
    "common.Duration": "of_millis of_seconds of_minutes of_hours of_days of_nanos",
    "common.Row": "as_dict get_row_kind set_row_kind of_kind",
    "common.RowKind": "INSERT UPDATE_BEFORE UPDATE_AFTER DELETE",
    "common.WatermarkStrategy": (
        "for_monotonous_timestamps for_bounded_out_of_orderness no_watermarks with_timestamp_assigner with_idleness "
        "with_watermark_alignment"
    ),
    "datastream.window.WindowAssigner": "assign_windows get_default_trigger get_window_serializer is_event_time",
    "datastream.window.MergingWindowAssigner": "merge_windows",
    "datastream.window.EventTimeSessionWindows": "with_gap with_dynamic_gap",
    "datastream.window.ProcessingTimeSessionWindows": "with_gap with_dynamic_gap",
    "datastream.window.Trigger": (
        "on_element on_processing_time on_event_time can_merge on_merge clear TriggerContext OnMergeContext"
    ),
    "datastream.window.TriggerResult": "CONTINUE FIRE PURGE FIRE_AND_PURGE",
    "datastream.window.TimeWindow": "max_timestamp intersects cover",
    "datastream.connectors.DeliveryGuarantee": "EXACTLY_ONCE AT_LEAST_ONCE NONE",
    "datastream.connectors.kafka.KafkaSourceBuilder": (
        "set_bootstrap_servers set_group_id set_topics set_topic_pattern set_partitions set_starting_offsets "
        "set_bounded set_unbounded set_value_only_deserializer set_client_id_prefix set_property set_properties build"
    ),
    "datastream.connectors.kafka.KafkaOffsetsInitializer": "earliest latest committed_offsets timestamp offsets",
    "datastream.connectors.kafka.KafkaTopicSelector": "apply",
    "datastream.connectors.kafka.KafkaSinkBuilder": (
        "set_bootstrap_servers set_delivery_guarantee set_transactional_id_prefix set_record_serializer set_property "
        "build"
    ),
    "datastream.connectors.file_system.FileSource": (
        "for_record_stream_format for_bulk_file_format monitor_continuously process_static_file_set build"
    ),
    "datastream.connectors.file_system.FileSink": (
        "for_row_format for_bulk_format with_bucket_assigner with_rolling_policy with_output_file_config "
        "enable_compact build"
    ),
}
"""Below `pyflink`: the public methods, nested classes and members of each class."""

ABSENT_METHODS = {
    ("datastream.DataStream", "cache"): "no results are kept between jobs",
    ("common.JobClient", "get_accumulators"): "user metrics are in get_status_report().metrics",
}
"""What a class does not have, and why."""
