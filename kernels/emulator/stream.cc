// Streams, events, capture and graphs.
//
// Work stays in the queue of its stream until the host waits for it: the latest moment that the
// driver allows, so that host code which reads or changes memory too early is found. `order` may
// also be `early` (at once) or `random` (some of it, at any call).
//
// Work that returns NOT_READY waits for a peer, as a broadcast does for its sender. It stays in the
// queue, later work waits, and a thread that waits for the stream releases the lock meanwhile.
#include "driver.h"

#include <chrono>

namespace twin {
namespace {

std::set<Stream *> streams;
std::set<Event *> events;
std::set<Graph *> graphs;        // that were captured
std::set<Graph *> executables;   // that were instantiated

// The legacy default stream (handles 0 and 1): waits for all blocking streams.
Stream *default_stream() {
  static Stream stream;
  streams.insert(&stream);
  stream.blocking = true;
  return &stream;
}

double now() {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

Result run_to(Stream *stream, uint64_t number);

Stream *running = nullptr;

Result run_one(Stream *stream) {
  Operation &operation = stream->queue.front();
  if (operation.wait && events.count(operation.wait)) {
    Event *event = operation.wait;
    if (event->stream && streams.count(event->stream))
      if (Result result = run_to(event->stream, operation.wait_for)) return result;
  }
  Work work = std::move(operation.work);
  Kind kind = operation.kind;
  running = stream;
  Result result = work ? work() : SUCCESS;
  if (result == NOT_READY) {
    stream->queue.front().work = std::move(work);
    return result;
  }
  stream->queue.pop_front();
  stream->done++;
  if (kind != MARK) stream->latest = kind;
  if (kind == KERNEL) stream->latest_blocks = emulate::latest_blocks();
  return result;
}

Result run_to(Stream *stream, uint64_t number) {
  while (stream->done < number && !stream->queue.empty())
    if (Result result = run_one(stream)) return result;
  return SUCCESS;
}

void settle_default() {
  Stream *legacy = default_stream();
  for (Stream *stream : std::set<Stream *>(streams))
    if (stream->blocking && stream != legacy) run_all(stream);
  run_all(legacy);
}

// A call that a capture of this thread forbids breaks the capture.
Result breaks_capture(Stream *stream) {
  if (!stream->capture) return SUCCESS;
  stream->capture_broken = true;
  return STREAM_CAPTURE_UNSUPPORTED;
}

Result add(Stream *stream, Operation operation) {
  stream->queue.push_back(std::move(operation));
  stream->asked++;
  if (stream == default_stream())
    settle_default();
  else
    settle(stream);
  return SUCCESS;
}

} // namespace

Stream *stream_of(void *handle) {
  auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 2) return default_stream();
  auto stream = static_cast<Stream *>(handle);
  return streams.count(stream) ? stream : nullptr;
}

Event *event_of(void *handle) {
  auto event = static_cast<Event *>(handle);
  return events.count(event) ? event : nullptr;
}

Stream *running_stream() { return running; }

Result enqueue(Stream *stream, Work work, Kind kind) {
  if (stream->capture_broken) return STREAM_CAPTURE_INVALIDATED;
  if (stream->capture) {
    stream->capture->nodes.push_back({std::move(work), kind});
    return SUCCESS;
  }
  if (stream == default_stream() && captures(0)) return STREAM_CAPTURE_IMPLICIT;
  return add(stream, {std::move(work), kind});
}

Result run_all(Stream *stream) { return run_to(stream, stream->asked); }

Result patiently(const Work &run) {
  for (;;) {
    Result result = settings().hang ? NOT_READY : run();
    if (result != NOT_READY) return result;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    lock.lock();
  }
}

Result run_everything() {
  return patiently([] {
    Result later = SUCCESS;
    for (Stream *stream : std::set<Stream *>(streams)) {
      Result result = run_all(stream);
      if (result && result != NOT_READY) return result;
      if (result) later = result;
    }
    return later;
  });
}

void drop_everything() {
  for (Stream *stream : streams) {
    stream->queue.clear();
    stream->done = stream->asked;
    stream->capture.reset();
    stream->capture_broken = false;
  }
}

void settle(Stream *stream) {
  if (settings().order == EARLY) run_all(stream);
  if (settings().order != RANDOM) return;
  for (Stream *any : std::set<Stream *>(streams)) {
    size_t most = any->queue.size();
    for (size_t i = random_number() % (2 * most + 1); i > 0 && !any->queue.empty(); i--)
      if (run_one(any)) break;
  }
}

bool captures(int mode) {
  for (Stream *stream : streams)
    if (stream->capture && stream->capture_mode <= mode &&
        (stream->capture_mode == 0 || stream->capture_thread == std::this_thread::get_id()))
      return true;
  return false;
}

extern "C" {
#define API __attribute__((visibility("default"))) int
#define BEGIN                                            \
  std::lock_guard<std::recursive_mutex> guard(lock);     \
  if (Result wrong = ready()) return wrong

API cuStreamCreate(void **stream, unsigned flags) {
  BEGIN;
  if (!stream || flags > 1) return INVALID_VALUE;
  auto made = new Stream;
  made->blocking = flags == 0;
  streams.insert(made);
  *stream = made;
  return SUCCESS;
}

API cuStreamCreateWithPriority(void **stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}

API cuStreamDestroy_v2(void *handle) {
  BEGIN;
  Stream *stream = stream_of(handle);
  if (!stream || stream == default_stream()) return INVALID_HANDLE;
  patiently([=] { return run_all(stream); });
  streams.erase(stream);
  delete stream;
  return SUCCESS;
}

API cuStreamSynchronize(void *handle) {
  BEGIN;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (Result result = breaks_capture(stream)) return result;
  counts().synchronizations++;
  return patiently([=] {
    if (stream == default_stream()) settle_default();
    return run_all(stream);
  });
}

API cuStreamQuery(void *handle) {
  BEGIN;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (Result result = breaks_capture(stream)) return result;
  // Polling makes progress, so that it ends.
  if (!stream->queue.empty())
    if (Result result = run_one(stream)) return result;
  return stream->queue.empty() ? SUCCESS : NOT_READY;
}

API cuCtxSynchronize() {
  BEGIN;
  if (captures(1)) return STREAM_CAPTURE_UNSUPPORTED;
  counts().synchronizations++;
  return run_everything();
}

// ---- events ----
API cuEventCreate(void **event, unsigned) {
  BEGIN;
  if (!event) return INVALID_VALUE;
  auto made = new Event;
  events.insert(made);
  *event = made;
  return SUCCESS;
}

API cuEventDestroy_v2(void *handle) {
  BEGIN;
  Event *event = event_of(handle);
  if (!event) return INVALID_HANDLE;
  // Waiting for the event waits for all work before it.
  for (Stream *stream : streams)
    for (Operation &operation : stream->queue)
      if (operation.wait == event && event->stream)
        patiently([&] { return run_to(event->stream, operation.wait_for); });
  events.erase(event);
  delete event;
  return SUCCESS;
}

API cuEventRecord(void *handle, void *stream_handle) {
  BEGIN;
  Event *event = event_of(handle);
  Stream *stream = stream_of(stream_handle);
  if (!event || !stream) return INVALID_HANDLE;
  event->captured = stream->capture != nullptr;
  event->stream = stream;
  if (event->captured) return SUCCESS;
  event->number = stream->asked + 1;
  uint64_t number = event->number;
  return add(stream, {[event, number] {
               if (events.count(event) && event->number == number) event->seconds = now();
               return SUCCESS;
             },
             MARK});
}

API cuStreamWaitEvent(void *stream_handle, void *handle, unsigned) {
  BEGIN;
  Event *event = event_of(handle);
  Stream *stream = stream_of(stream_handle);
  if (!event || !stream) return INVALID_HANDLE;
  if (event->captured) {
    // Forks of a capture into other streams are not supported.
    return event->stream == stream && stream->capture ? SUCCESS : CAPTURED_EVENT;
  }
  if (stream->capture && event->stream) {
    stream->capture_broken = true;
    return STREAM_CAPTURE_ISOLATION;
  }
  if (!event->stream) return SUCCESS;
  return add(stream, {nullptr, MARK, event, event->number});
}

API cuEventSynchronize(void *handle) {
  BEGIN;
  Event *event = event_of(handle);
  if (!event) return INVALID_HANDLE;
  if (event->captured) return CAPTURED_EVENT;
  counts().synchronizations++;
  return patiently([=] {
    return event->stream && streams.count(event->stream) ? run_to(event->stream, event->number)
                                                         : SUCCESS;
  });
}

API cuEventQuery(void *handle) {
  BEGIN;
  Event *event = event_of(handle);
  if (!event) return INVALID_HANDLE;
  if (event->captured) return CAPTURED_EVENT;
  Stream *stream = event->stream;
  if (!stream || !streams.count(stream) || stream->done >= event->number) return SUCCESS;
  if (Result result = run_one(stream)) return result;
  return stream->done >= event->number ? SUCCESS : NOT_READY;
}

API cuEventElapsedTime_v2(float *milliseconds, void *first, void *second) {
  BEGIN;
  Event *from = event_of(first), *to = event_of(second);
  if (!milliseconds || !from || !to) return INVALID_HANDLE;
  if (!from->stream || !to->stream) return INVALID_HANDLE;
  if (from->stream->done < from->number || to->stream->done < to->number) return NOT_READY;
  *milliseconds = static_cast<float>((to->seconds - from->seconds) * 1000);
  return SUCCESS;
}
API cuEventElapsedTime(float *milliseconds, void *first, void *second) {
  return cuEventElapsedTime_v2(milliseconds, first, second);
}

// ---- capture and graphs ----
API cuStreamBeginCapture_v2(void *handle, int mode) {
  BEGIN;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (stream == default_stream()) return STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture || mode < 0 || mode > 2) return INVALID_VALUE;
  stream->capture = std::make_shared<Graph>();
  stream->capture_broken = false;
  stream->capture_mode = mode;
  stream->capture_thread = std::this_thread::get_id();
  return SUCCESS;
}

API cuStreamIsCapturing(void *handle, int *status) {
  BEGIN;
  Stream *stream = stream_of(handle);
  if (!stream || !status) return INVALID_HANDLE;
  *status = !stream->capture ? 0 : stream->capture_broken ? 2 : 1;
  return SUCCESS;
}

API cuStreamEndCapture(void *handle, void **graph) {
  BEGIN;
  Stream *stream = stream_of(handle);
  if (!stream || !graph) return INVALID_HANDLE;
  *graph = nullptr;
  if (!stream->capture) return INVALID_VALUE;
  auto captured = std::move(stream->capture);
  bool broken = stream->capture_broken;
  stream->capture = nullptr;
  stream->capture_broken = false;
  if (broken) return STREAM_CAPTURE_INVALIDATED;
  auto made = new Graph(*captured);
  graphs.insert(made);
  *graph = made;
  return SUCCESS;
}

API cuGraphInstantiateWithFlags(void **executable, void *handle, unsigned long long) {
  BEGIN;
  auto graph = static_cast<Graph *>(handle);
  if (!executable || !graphs.count(graph)) return INVALID_VALUE;
  auto &fail = settings().fail_recording;
  if (fail > 0 && --fail == 0) return OUT_OF_MEMORY;
  counts().recordings++;
  auto made = new Graph(*graph);
  executables.insert(made);
  *executable = made;
  return SUCCESS;
}

API cuGraphUpload(void *handle, void *stream) {
  BEGIN;
  bool known = executables.count(static_cast<Graph *>(handle)) && stream_of(stream);
  return known ? SUCCESS : INVALID_VALUE;
}

API cuGraphLaunch(void *handle, void *stream_handle) {
  BEGIN;
  auto graph = static_cast<Graph *>(handle);
  Stream *stream = stream_of(stream_handle);
  if (!executables.count(graph)) return INVALID_VALUE;
  if (!stream) return INVALID_HANDLE;
  counts().graph_launches++;
  // A graph begins when all before it is over, and is over before what is behind it begins.
  if (Result result = enqueue(stream, nullptr)) return result;
  for (const Operation &node : graph->nodes)
    if (Result result = enqueue(stream, node.work, node.kind)) return result;
  graph->running++;
  return enqueue(stream, [=] {
    graph->running--;
    return SUCCESS;
  });
}

API cuGraphExecDestroy(void *handle) {
  BEGIN;
  auto graph = static_cast<Graph *>(handle);
  if (!executables.count(graph)) return INVALID_VALUE;
  // Newer drivers keep what still runs; their documentation does not promise it.
  if (graph->running) return fault(LAUNCH_FAILED, "a graph is destroyed while it runs");
  executables.erase(graph);
  delete graph;
  return SUCCESS;
}

API cuGraphDestroy(void *handle) {
  BEGIN;
  auto graph = static_cast<Graph *>(handle);
  if (!graphs.erase(graph)) return INVALID_VALUE;
  delete graph;
  return SUCCESS;
}

// `nodes` may be null, to return the count only.
API cuGraphGetNodes(void *handle, void **nodes, size_t *count) {
  BEGIN;
  auto graph = static_cast<Graph *>(handle);
  if (!graphs.count(graph) || !count) return INVALID_VALUE;
  if (nodes) return NOT_SUPPORTED;
  *count = graph->nodes.size();
  return SUCCESS;
}

API cuLaunchHostFunc(void *handle, void (*function)(void *), void *data) {
  BEGIN;
  Stream *stream = stream_of(handle);
  if (!stream || !function) return INVALID_HANDLE;
  return enqueue(stream, [=] {
    function(data);
    return SUCCESS;
  });
}
}

} // namespace twin
