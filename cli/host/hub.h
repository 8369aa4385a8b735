/* hub.h: addresses and local copies of the Hugging Face hub.
 * SPDX-License-Identifier: MIT */
#ifndef SEGUE_CLI_HUB_H
#define SEGUE_CLI_HUB_H

#include <stdbool.h>

/* The id OWNER/NAME[@REVISION] in the address of a model's page at the hub, allocated; NULL for another address. The page of a
 * file, /OWNER/NAME/blob/REVISION/FILE, sets *file to the address of its content, allocated. endpoint: URL of the hub. */
char *hub_id_of_page(const char *endpoint, const char *url, char **file);
/* True if a file begins as a web page, which is what the address of a page returns instead of a model. */
bool hub_is_web_page(const char *path);
/* True if a folder of the local cache contains all weight files of its index. */
bool hub_snapshot_complete(const char *folder);

#endif
