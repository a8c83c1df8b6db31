/* Stands in for libmemkind: says on standard error what it is asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int hbw_check_available(void) {
    return getenv("FAKE_WITHOUT_MEMORY") ? 19 : 0;
}

int hbw_posix_memalign(void **start, size_t align, size_t size) {
    if (size > ((size_t)1 << 40)) {
        return 12;
    }
    fprintf(stderr, "allocate %zu align %zu\n", size, align);
    int status = posix_memalign(start, align, size);
    if (status == 0) {
        memset(*start, 0xee, size);
    }
    return status;
}

#ifndef WITHOUT_FREE
void hbw_free(void *start) {
    fprintf(stderr, "free\n");
    free(start);
}
#endif
