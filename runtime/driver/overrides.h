// What every machine implements of the driver interface: these declarations stand in the class that does.
// Threads: as the driver interface.
result<device_info> info(int device) override;
status open(int device) override;
result<memory_info> memory(int device) override;
status make_current(int device) override;
result<int> current_device() override;
status synchronize_device(int device) override;
result<peer_info> peer(int from, int to) override;

result<address> reserve(std::size_t bytes, std::size_t alignment) override;
status unreserve(address, std::size_t bytes) override;
result<memory_handle> create(int device, std::size_t bytes) override;
status release(memory_handle) override;
status map(address, std::size_t bytes, memory_handle) override;
status unmap(address, std::size_t bytes) override;
status grant(address, std::size_t bytes, int device) override;
status grant_all(address, std::size_t bytes, std::uint64_t devices) override;
result<memory_handle> create_shared(int device, std::size_t bytes) override;
result<int> export_handle(memory_handle) override;
result<memory_handle> import_handle(int device, std::size_t bytes, int file) override;
result<address> create_segment(int device, std::size_t bytes) override;
status release_segment(int device, address) override;
status pin(void* host, std::size_t bytes) override;
status unpin(void* host) override;
result<place> find(void const*) override;

result<stream_handle> create_stream(int device, stream_kind, int priority) override;
status destroy_stream(int device, stream_handle) override;
status query_stream(int device, stream_handle) override;
status synchronize_stream(int device, stream_handle) override;
result<bool> capturing(int device, stream_handle) override;
result<std::uint64_t> capture_of(int device, stream_handle) override;
result<stream_handle> adopt(int device, CUstream_st*) override;
result<identity> identify(int device, CUstream_st*) override;
result<int> stream_device(int device, CUstream_st*) override;
result<stream_kind> kind_of(int device, stream_handle) override;
result<CUstream_st*> native(int device, stream_handle) override;
result<event_handle> create_event(int device, event_kind) override;
status destroy_event(int device, event_handle) override;
result<CUevent_st*> native_event(event_handle) override;
status record(int device, stream_handle, event_handle) override;
status wait(int device, stream_handle, event_handle) override;
status query_event(event_handle) override;
status synchronize_event(event_handle) override;
result<float> elapsed_ms(event_handle start, event_handle end) override;

status copy(int device, stream_handle, void* dst, void const* src, std::size_t bytes) override;
status copy_peer(int device, stream_handle, void* dst, int dst_device, void const* src, int src_device,
                 std::size_t bytes) override;
status upload(int device, stream_handle, void* dst, void const* src, std::size_t bytes) override;
upload_room room_for_uploads() noexcept override;
status fill(int device, stream_handle, void* dst, std::uint32_t pattern, int pattern_bytes, std::size_t count) override;
status host_function(int device, stream_handle, work) override;
status enqueue(int device, stream_handle, std::span<touch const>, work) override;

status begin_capture(int device, stream_handle, capture_mode) override;
result<graph_handle> end_capture(int device, stream_handle) override;
status keep_with_graph(int device, stream_handle, void (*drop)(void*), void* state) override;
status update(int device, executable_handle, graph_handle) override;
result<executable_handle> instantiate(int device, graph_handle) override;
status launch_graph(int device, stream_handle, executable_handle) override;
status destroy_graph(graph_handle) override;
status destroy_executable(executable_handle) override;

result<gate_handle> hold(int device, stream_handle) override;
status open_gate(gate_handle) override;
