/* fuzz_record.c: hostile records (run --record) and meter logs. The first byte selects the parser.
 * SPDX-License-Identifier: MIT */
#include "../../cli/meter/asitop.c"
#include "../../cli/meter/log_samples.c"
#include "../../cli/meter/powermetrics.c"
#include "../../cli/replay/record_file.c"
#include "../../cli/term/out.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    segue_error err;
    if (!size) return 0;
    char *text = out_alloc(size);
    memcpy(text, data + 1, size - 1);
    if (data[0] % 3 == 0) {
        struct record_list r;
        record_parse(&r, text, size - 1, "fuzz", &err);
        record_list_free(&r);
    } else {
        struct log_samples s = {0};
        if (data[0] % 3 == 1)
            powermetrics_parse(&s, text, size - 1, "fuzz", &err);
        else
            asitop_parse(&s, text, size - 1, "fuzz", &err);
        free(s.list);
    }
    free(text);
    return 0;
}
