package bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;

/**
 * The rows of a dataset by index, from the flat files beside the Parquet ones: key index int32, temperature float64,
 * little-endian, 12 bytes a row. The files are mapped, and the ids are made once, so that reading a row costs the job
 * next to nothing: Parquet in Java would cost it more.
 */
final class Readings {

    static final int ROW_BYTES = 12;
    static final long START_TS_MS = 1_700_000_000_000L;

    private static final ConcurrentHashMap<String, Readings> OPENED = new ConcurrentHashMap<>();

    private final MappedByteBuffer[] files;
    private final String[] ids;
    final int rowsPerFile;

    /** Opened once in a process; all source subtasks of the in-process cluster share it. */
    static Readings of(String directory, int keys) {
        return OPENED.computeIfAbsent(directory, ignored -> new Readings(Path.of(directory), keys));
    }

    private Readings(Path directory, int keys) {
        try (Stream<Path> listing = Files.list(directory)) {
            List<Path> paths = listing.filter(path -> path.toString().endsWith(".rows")).sorted().toList();
            List<MappedByteBuffer> mapped = new ArrayList<>();
            for (Path path : paths) {
                try (FileChannel channel = FileChannel.open(path)) {
                    MappedByteBuffer buffer = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
                    buffer.order(ByteOrder.LITTLE_ENDIAN);
                    mapped.add(buffer.load());
                }
            }
            files = mapped.toArray(new MappedByteBuffer[0]);
        } catch (IOException error) {
            throw new UncheckedIOException("Cannot map the flat files of " + directory, error);
        }
        if (files.length == 0) {
            throw new IllegalArgumentException(directory + " has no .rows files: make it with `python -m bench data`.");
        }
        rowsPerFile = files[0].capacity() / ROW_BYTES;
        for (MappedByteBuffer file : files) {
            if (file.capacity() != files[0].capacity()) {
                throw new IllegalArgumentException(directory + " has .rows files of unequal length.");
            }
        }
        ids = new String[keys];
        for (int key = 0; key < keys; key++) {
            ids[key] = String.format("sensor-%06d", key);
        }
    }

    int files() {
        return files.length;
    }

    long rows() {
        return (long) rowsPerFile * files.length;
    }

    String id(int file, int row) {
        return ids[files[file].getInt(row * ROW_BYTES)];
    }

    double temperature(int file, int row) {
        return files[file].getDouble(row * ROW_BYTES + 4);
    }
}
