/* The choice between plain and streaming stores follows the machine, and one slow sample does not
 * turn it. */
#include "engine/stores.h"

#include "check.h"

enum { SPAN = 256 * 1024 };

/* Store spans on a machine with these rates in bytes per ns; the number that was streamed. */
static int run(ddl__stores *stores, int spans, double plain, double streamed)
{
    int n = 0;
    for (int i = 0; i < spans; i++) {
        bool stream = ddl__stores_choose(stores);
        ddl__stores_learn(stores, stream, SPAN, (int64_t)(SPAN / (stream ? streamed : plain)));
        n += stream;
    }
    return n;
}

int main(void)
{
    ddl__stores stores = {0};
    int n = run(&stores, 310, 12, 8); /* near */
    CHECK(n >= 6 && n <= 9, "%d of 310 streamed while near", n);
    n = run(&stores, 310, 1.8, 16); /* the core moved away */
    CHECK(n >= 290, "%d of 310 streamed while far", n);
    n = run(&stores, 620, 12, 8); /* and back */
    CHECK(n < 300, "%d of 620 streamed when near again", n);

    CHECK(!ddl__stores_better(&stores), "plain is better by now");
    ddl__stores equal = {0};
    n = run(&equal, 310, 32, 45); /* one cache for both: readers pay for what was streamed */
    CHECK(n >= 10 && n <= 12, "%d of 310 streamed for a small gain of the writer alone", n);
    ddl__stores slow = {0};
    n = run(&slow, 3100, 16, 1); /* tries shall cost little, and be made all the same */
    CHECK(n >= 12 && n <= 14, "%d of 3100 streamed where that is far slower", n);
    ddl__stores_learn(&stores, false, SPAN, 50 * 1000 * 1000); /* preempted once */
    CHECK(!ddl__stores_better(&stores), "one slow sample turned the choice");
    return 0;
}
