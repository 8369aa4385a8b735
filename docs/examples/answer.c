/* answer.c: the library in one screen. cc answer.c $(pkg-config --cflags --libs segue) && ./a.out MODEL "2 + 2 ="
 * SPDX-License-Identifier: MIT */
#include <segue.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    segue_error err = {0};
    segue_unit *unit = NULL;
    segue_model *model = NULL;
    segue_engine *engine = NULL;
    segue_session *session = NULL;
    int32_t tokens[512], token;
    char text[512];
    size_t n, len;
    if (argc < 3) return 2;
    segue_text stream = SEGUE_INIT(segue_text);
    int bad = segue_unit_open(&unit, NULL, &err) || segue_model_open(&model, argv[1], NULL, &err) ||
              segue_engine_open(&engine, model, &unit, 1, NULL, &err) ||
              segue_session_open(&session, engine, NULL, &err) ||
              segue_tokenize(model, argv[2], strlen(argv[2]), 0, tokens, 512, &n, &err) ||
              segue_session_append(session, tokens, n, &err);
    for (int i = 0; !bad && i < 32 && segue_session_next(session, &token, &err) == SEGUE_OK; i++)
        if (segue_text_next(model, &stream, token, text, sizeof text, &len, &err) == SEGUE_OK) fwrite(text, 1, len, stdout);
    puts("");
    if (err.status < 0) fprintf(stderr, "segue: %s\n", err.text);
    segue_session_close(session);
    segue_engine_close(engine);
    segue_model_close(model);
    segue_unit_close(unit);
    return err.status < 0;
}
