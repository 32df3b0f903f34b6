// The lists of the cases of the program `races`.
#pragma once
#include "tests/bare/work.cuh"

namespace bare {

cases order_races();           // streams, events and waits of the host
cases default_stream_races();  // the legacy stream, and launches that name no stream
cases memory_races();          // frees, reuse and pinned memory
cases graph_races();
cases per_thread_races();  // compiled with --default-stream per-thread

}  // namespace bare
