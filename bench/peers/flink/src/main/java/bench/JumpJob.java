package bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Peer: Flink 2.x in Java, an in-process cluster. Arguments: {@code --data DIR --scratch DIR
 * [--backend heap|rocksdb] [--parallelism 2] [--warm-up DIR] [--checkpoint-interval-ms 0] [--managed-memory 512m]}.
 * RocksDB and the cluster keep their files in the scratch directory, which the caller removes.
 *
 * <p>Set up as a Flink user who wants speed would: records are tuples (quicker than POJOs), object reuse is on, and
 * RocksDB has ample managed memory. The warm-up job runs in the same JVM before the timed one.
 */
public final class JumpJob {

    static final double THRESHOLD = 1.7;
    private static final int MARK_EVERY = 256;

    static final AtomicLong FIRST_AT = new AtomicLong(Long.MAX_VALUE);
    static final AtomicLong LAST_AT = new AtomicLong(Long.MIN_VALUE);
    static final LongAdder RECORDS = new LongAdder();
    static final LongAdder ALERTS = new LongAdder();

    private JumpJob() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = parse(arguments);
        long startedMillis = java.lang.management.ManagementFactory.getRuntimeMXBean().getStartTime();
        double startup = Double.NaN;
        if (options.containsKey("warm-up")) {
            run(options, options.get("warm-up"));
            startup = secondsSince(startedMillis, FIRST_AT.get());
        }
        run(options, options.get("data"));
        if (Double.isNaN(startup)) {
            startup = secondsSince(startedMillis, FIRST_AT.get());
        }
        System.out.printf(
                "{\"peer\": \"flink\", \"variant\": \"%s, parallelism %s\", \"records\": %d, \"alerts\": %d, "
                        + "\"seconds_between_first_and_last_record\": %.6f, \"startup_seconds\": %.3f, "
                        + "\"versions\": {\"flink\": \"%s\", \"java\": \"%s\"}}%n",
                options.get("backend"),
                options.get("parallelism"),
                RECORDS.sum(),
                ALERTS.sum(),
                (LAST_AT.get() - FIRST_AT.get()) / 1e9,
                startup,
                EnvironmentInformation.getVersion(),
                System.getProperty("java.version"));
    }

    private static double secondsSince(long startedMillis, long nanoTime) {
        long agoNanos = System.nanoTime() - nanoTime;
        return (System.currentTimeMillis() - startedMillis) / 1e3 - agoNanos / 1e9;
    }

    private static void run(Map<String, String> options, String directory) throws Exception {
        FIRST_AT.set(Long.MAX_VALUE);
        LAST_AT.set(Long.MIN_VALUE);
        RECORDS.reset();
        ALERTS.reset();

        int parallelism = Integer.parseInt(options.get("parallelism"));
        int keys = manifestInt(directory, "keys");
        Readings readings = Readings.of(directory, keys);
        if (readings.files() % parallelism != 0) {
            throw new IllegalArgumentException(
                    directory + " has " + readings.files() + " files, which parallelism " + parallelism
                            + " does not divide: a key's rows would be read by two subtasks.");
        }

        Configuration configuration = new Configuration();
        configuration.set(RestOptions.BIND_PORT, "0");
        configuration.set(TaskManagerOptions.NUM_TASK_SLOTS, parallelism);
        configuration.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.parse(options.get("managed-memory")));
        configuration.set(StateBackendOptions.STATE_BACKEND, options.get("backend").equals("heap") ? "hashmap" : "rocksdb");
        Path scratch = Files.createDirectories(Path.of(options.get("scratch")));
        configuration.setString("state.backend.rocksdb.localdir", Files.createDirectories(scratch.resolve("rocksdb")).toString());
        configuration.setString("io.tmp.dirs", Files.createDirectories(scratch.resolve("tmp")).toString());
        configuration.setString("execution.checkpointing.storage", "filesystem");
        configuration.setString("execution.checkpointing.dir", scratch.resolve("checkpoints").toUri().toString());

        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration);
        environment.getConfig().enableObjectReuse();
        long interval = Long.parseLong(options.get("checkpoint-interval-ms"));
        if (interval > 0) {
            environment.enableCheckpointing(interval);
        }

        DataGeneratorSource<Tuple3<String, Long, Double>> source = new DataGeneratorSource<>(
                new RowByIndex(directory, keys),
                readings.rows(),
                TypeInformation.of(new TypeHint<Tuple3<String, Long, Double>>() {}));
        environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "readings")
                .keyBy(reading -> reading.f0, Types.STRING)
                .process(new TemperatureAlert())
                .sinkTo(new DiscardingSink<>());
        environment.execute("jumps");
    }

    /** Gives row <i>n</i> of the dataset; the generator deals every subtask one unbroken range, whole files each. */
    static final class RowByIndex implements GeneratorFunction<Long, Tuple3<String, Long, Double>> {

        private final String directory;
        private final int keys;
        private transient Readings readings;
        private transient Tuple3<String, Long, Double> reused;

        RowByIndex(String directory, int keys) {
            this.directory = directory;
            this.keys = keys;
        }

        @Override
        public void open(SourceReaderContext context) {
            readings = Readings.of(directory, keys);
        }

        @Override
        public Tuple3<String, Long, Double> map(Long index) {
            if (reused == null) {
                reused = new Tuple3<>();
                FIRST_AT.accumulateAndGet(System.nanoTime(), Math::min);
            }
            int file = (int) (index / readings.rowsPerFile);
            int row = (int) (index - (long) file * readings.rowsPerFile);
            reused.f0 = readings.id(file, row);
            reused.f1 = Readings.START_TS_MS + row;
            reused.f2 = readings.temperature(file, row);
            return reused;
        }
    }

    /** The job itself: id, time, last temperature and new one, for every jump above the threshold. */
    static final class TemperatureAlert
            extends KeyedProcessFunction<String, Tuple3<String, Long, Double>, Tuple4<String, Long, Double, Double>> {

        private transient ValueState<Double> last;
        private transient int seen;

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Types.DOUBLE));
        }

        @Override
        public void processElement(
                Tuple3<String, Long, Double> reading,
                Context context,
                Collector<Tuple4<String, Long, Double, Double>> out)
                throws IOException {
            Double previous = last.value();
            double temperature = reading.f2;
            if (previous != null && Math.abs(temperature - previous) > THRESHOLD) {
                ALERTS.increment();
                out.collect(new Tuple4<>(reading.f0, reading.f1, previous, temperature));
            }
            last.update(temperature);
            // The clock is read rarely: the error is a few hundred records of many millions.
            if (++seen == MARK_EVERY) {
                mark();
            }
        }

        @Override
        public void close() {
            if (seen > 0) {
                mark();
            }
        }

        private void mark() {
            RECORDS.add(seen);
            seen = 0;
            LAST_AT.accumulateAndGet(System.nanoTime(), Math::max);
        }
    }

    private static Map<String, String> parse(String[] arguments) {
        Map<String, String> options = new HashMap<>(Map.of(
                "backend", "heap",
                "parallelism", "2",
                "checkpoint-interval-ms", "0",
                "managed-memory", "512m"));
        for (int at = 0; at + 1 < arguments.length; at += 2) {
            options.put(arguments[at].replaceFirst("^--", ""), arguments[at + 1]);
        }
        for (String required : new String[] {"data", "scratch"}) {
            if (!options.containsKey(required)) {
                throw new IllegalArgumentException("--" + required + " DIR is missing: see the class comment.");
            }
        }
        return options;
    }

    private static int manifestInt(String directory, String field) throws IOException {
        String manifest = Files.readString(Path.of(directory, "manifest.json"));
        Matcher matcher = Pattern.compile("\"" + field + "\"\\s*:\\s*(\\d+)").matcher(manifest);
        if (!matcher.find()) {
            throw new IllegalArgumentException(directory + "/manifest.json has no number \"" + field + "\".");
        }
        return Integer.parseInt(matcher.group(1));
    }
}
