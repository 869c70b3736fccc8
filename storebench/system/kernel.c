/* Draw windows, cut them out of raw images, and copy whole samples, a whole batch per call. */

#include <stdint.h>
#include <string.h>

/* What numpy tells of an array (__array_struct__). */
typedef struct {
    int version, dimensions;
    char kind;
    int item_bytes, flags;
    intptr_t *shape, *strides;
    void *data;
} array;

/* The arguments of the functions below, as they are packed. */
typedef struct {
    const array *source;
    int64_t source_bytes;
    const array *offsets, *places;
    int64_t count, rows, columns, channels, height, width;
    const array *out;
} cut;

typedef struct {
    uint64_t stream;
    const array *indices;
    int64_t count, tops, lefts, mirrors;
    const array *places;
} draw;

#if defined(__x86_64__)

#include <immintrin.h>
#define SHUFFLING __attribute__((target("ssse3")))

static int can_shuffle(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("ssse3");
}

/* Mirrors five RGB pixels. It reads and writes one byte more. */
SHUFFLING static inline void mirror_five(const uint8_t *from, uint8_t *to)
{
    const __m128i order = _mm_setr_epi8(12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2, 15);
    _mm_storeu_si128((__m128i *)to, _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)from), order));
}

#elif defined(__aarch64__)

#include <arm_neon.h>
#define SHUFFLING

static int can_shuffle(void)
{
    return 1;
}

static inline void mirror_five(const uint8_t *from, uint8_t *to)
{
    static const uint8_t order[16] = {12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2, 15};
    vst1q_u8(to, vqtbl1q_u8(vld1q_u8(from), vld1q_u8(order)));
}

#else

#define SHUFFLING

static int can_shuffle(void)
{
    return 0;
}

static inline void mirror_five(const uint8_t *from, uint8_t *to)
{
    (void)from, (void)to;
}

#endif

static inline __attribute__((always_inline)) void mirror_pixels(
    const uint8_t *from, uint8_t *to, int64_t pixels, int64_t channels)
{
    for (from += pixels * channels; pixels > 0; pixels--, to += channels) {
        from -= channels;
        memcpy(to, from, (size_t)channels);
    }
}

/* The first and the last pixel are mirrored by themselves, so that no access leaves the row; the last five may overlap. */
SHUFFLING static void mirror_rgb(const uint8_t *from, uint8_t *to, int64_t pixels)
{
    if (pixels < 7) {
        mirror_pixels(from, to, pixels, 3);
        return;
    }
    mirror_pixels(from + 3 * (pixels - 1), to, 1, 3);
    for (int64_t done = 1; done + 6 <= pixels; done += 5)
        mirror_five(from + 3 * (pixels - 5 - done), to + 3 * done);
    mirror_five(from + 3, to + 3 * (pixels - 6));
    mirror_pixels(from, to + 3 * (pixels - 1), 1, 3);
}

/* As mirror_rgb, for a row that another one follows on both sides: it reads one byte beyond its row and writes one. */
SHUFFLING static void mirror_rgb_before(const uint8_t *from, uint8_t *to, int64_t pixels)
{
    if (pixels < 5) {
        mirror_pixels(from, to, pixels, 3);
        return;
    }
    for (int64_t done = 0; done + 5 <= pixels; done += 5)
        mirror_five(from + 3 * (pixels - 5 - done), to + 3 * done);
    mirror_five(from, to + 3 * (pixels - 5));
}

/* Short rows are copied without a call: there are thousands in a batch of small images. */
static void copy_row(const uint8_t *from, uint8_t *to, int64_t bytes)
{
    if (bytes < 16 || bytes > 256) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (int64_t at = 0; at + 16 <= bytes; at += 16)
        memcpy(to + at, from + at, 16);
    memcpy(to + bytes - 16, from + bytes - 16, 16);
}

static void mirror_row(const uint8_t *from, uint8_t *to, int64_t pixels, int64_t channels, int shuffle)
{
    if (channels == 3 && shuffle)
        mirror_rgb(from, to, pixels);
    else if (channels == 3)
        mirror_pixels(from, to, pixels, 3);
    else if (channels == 1)
        mirror_pixels(from, to, pixels, 1);
    else
        mirror_pixels(from, to, pixels, channels);
}

/* Images of at most this size are over before the processor fetches ahead by itself. */
#define SMALL_BYTES 8192
/* The processor's own prefetcher follows once it has seen this much of a small image in order. */
#define HEAD_BYTES 256

/* Asks for the beginning of a small image well before its rows are asked for: the translation of its page's address takes as
   long as its first byte, and a row that waits for one holds up those behind it. */
static inline void ask_for_head(const uint8_t *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes && at < HEAD_BYTES; at += 64)
        __builtin_prefetch(from + at, 0, 2);
}

/* Cuts one window per place (top, left, mirrored) out of images of rows x columns x channels that begin at offsets.
   Without a source, offsets are addresses. Returns how many were cut: fewer than count if a window is not in its image, or
   an image not in the source. */
int64_t storebench_cut(const cut *asked)
{
    const uint8_t *source = asked->source ? asked->source->data : 0;
    const int64_t source_bytes = asked->source_bytes, count = asked->count;
    const int64_t rows = asked->rows, columns = asked->columns, channels = asked->channels;
    const int64_t height = asked->height, width = asked->width;
    const int64_t *offsets = asked->offsets->data, *places = asked->places->data;
    uint8_t *out = asked->out->data;
    const int64_t image_bytes = rows * columns * channels, row_bytes = width * channels;
    const int shuffle = can_shuffle();
    for (int64_t n = 0; n < count; n++, places += 3) {
        const int64_t top = places[0], left = places[1], mirrored = places[2];
        if (offsets[n] < 0 || offsets[n] > source_bytes - image_bytes
            || top < 0 || top > rows - height || left < 0 || left > columns - width)
            return n;
        const uint8_t *from = (const uint8_t *)((uintptr_t)source + (uintptr_t)offsets[n]);
        from += (top * columns + left) * channels;
        /* The next row is fetched ahead, because a mirrored one is read from its end, and beside a small image the next image
           but one, into the second cache: each is over before the processor fetches ahead by itself. */
        const uint8_t *next = from + columns * channels;
        const int small = image_bytes <= SMALL_BYTES;
        if (small && n + 2 < count)
            next = (const uint8_t *)((uintptr_t)source + (uintptr_t)offsets[n + 2])
                + (places[6] * columns + places[7]) * channels;
        if (small && n + 4 < count)
            ask_for_head((const uint8_t *)((uintptr_t)source + (uintptr_t)offsets[n + 4])
                + (places[12] * columns + places[13]) * channels, image_bytes);
        if (!mirrored && width == columns) {
            memcpy(out, from, (size_t)(height * row_bytes));
            out += height * row_bytes;
            continue;
        }
        for (int64_t row = 0; row < height; row++, out += row_bytes) {
            if (small)
                for (int64_t at = 0; at < row_bytes; at += 64)
                    __builtin_prefetch(next + at, 0, 2);
            else
                for (int64_t at = 0; at < row_bytes; at += 64)
                    __builtin_prefetch(next + at);
            if (mirrored && shuffle && channels == 3 && row + 1 < height)
                mirror_rgb_before(from, out, width);
            else if (mirrored)
                mirror_row(from, out, width, channels, shuffle);
            else
                copy_row(from, out, row_bytes);
            from += columns * channels;
            next += columns * channels;
        }
    }
    return count;
}

/* Copies samples of one size that begin at offsets. Returns how many were copied: fewer than count if one is not in the
   source. */
int64_t storebench_rows(
    const array *sources, int64_t source_bytes, const array *all_offsets, int64_t count, int64_t size, const array *outs)
{
    const uint8_t *source = sources->data;
    const int64_t *offsets = all_offsets->data;
    uint8_t *out = outs->data;
    for (int64_t n = 0; n < count; n++, out += size) {
        if (offsets[n] < 0 || offsets[n] > source_bytes - size)
            return n;
        if (size <= SMALL_BYTES && n + 4 < count)
            ask_for_head((const uint8_t *)((uintptr_t)source + (uintptr_t)offsets[n + 4]), size);
        if (size <= SMALL_BYTES && n + 2 < count)
            for (int64_t at = 0; at < size; at += 64)
                __builtin_prefetch((const uint8_t *)((uintptr_t)source + (uintptr_t)(offsets[n + 2] + at)), 0, 2);
        memcpy(out, source + offsets[n], (size_t)size);
    }
    return count;
}

static uint64_t mixed(uint64_t value)
{
    value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
    return value ^ value >> 31;
}

/* Draws a place (top, left, mirrored) for each index, as storebench.loading.augment does with numpy. */
void storebench_draw(const draw *asked)
{
    const uint64_t stream = asked->stream;
    const int64_t count = asked->count, tops = asked->tops, lefts = asked->lefts, mirrors = asked->mirrors;
    const int64_t *indices = asked->indices->data;
    int64_t *places = asked->places->data;
    for (int64_t n = 0; n < count; n++, places += 3) {
        const uint64_t bits = mixed(stream + UINT64_C(0x9E3779B97F4A7C15) * ((uint64_t)indices[n] + 1));
        places[0] = (uint32_t)(bits & 0xFFFF) % (uint32_t)tops;
        places[1] = (uint32_t)(bits >> 16 & 0xFFFF) % (uint32_t)lefts;
        places[2] = (int64_t)(bits >> 32 & 1) * mirrors;
    }
}
