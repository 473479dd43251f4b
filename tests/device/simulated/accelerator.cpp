// A simulated accelerator: a PyTorch backend (PrivateUse1) that behaves like a GPU and lives in the memory of the host.
//
// It exists to test code for devices on machines that have none. It differs from the CPU wherever a real device does:
//   * the host cannot read its memory: device addresses are pages without permissions, and touching one is a crash;
//   * it has random generators of its own, and a seed gives other numbers there than on the CPU;
//   * tensors of different devices do not mix, backward runs on a thread of its own, and there are two devices;
//   * copies, waits of the host and kernel launches are counted, and a Python function is told who asked for them;
//   * it can be told to round products as TF32 does, to round by the shape of the batch, to add in no fixed order, or to know no float64.
//
// Every operation is carried out by the CPU's kernel on a "host view", a CPU tensor over the readable alias of the same memory.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/csrc/Generator.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <unordered_map>

namespace {
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
constexpr auto kSim = c10::DeviceType::PrivateUse1;
constexpr int kDeviceCount = 2;
thread_local c10::DeviceIndex current_device = 0;

// ------------------------------------------------------------------------------------------------ switches and counters

struct Switches {
  bool tf32 = false;            // products round their inputs to ten bits of fraction, unless PyTorch's flags forbid it
  bool round_by_shape = false;  // the last bit of a product depends on the shape of the whole result
  bool unordered = false;       // sums with atomic additions come out differently each time, unless deterministic algorithms are on
  bool no_float64 = false;      // as on MPS
} switches;

using Watcher = void (*)(const char* kind, int64_t bytes, const char* operation);
Watcher watcher = nullptr;
bool watches_launches = false;
thread_local bool inside_watcher = false;
std::mutex counters_lock;
std::map<std::string, int64_t> counters;

void count(const std::string& name, int64_t amount = 1) {
  std::lock_guard<std::mutex> guard(counters_lock);
  counters[name] += amount;
}

void tell_watcher(const char* kind, int64_t bytes, const std::string& operation) {
  if (watcher && !inside_watcher) {
    inside_watcher = true;
    watcher(kind, bytes, operation.c_str());
    inside_watcher = false;
  }
}

// Counts one copy or wait and tells the watcher, who looks up the call site.
void report(const char* kind, int64_t bytes, const std::string& operation) {
  count(kind);
  count(std::string(kind) + "_bytes", bytes);
  tell_watcher(kind, bytes, operation);
}

// Counts one launch of a kernel. The watcher is told only where it asked for launches, because they are many.
void launch(const std::string& operation) {
  count("launches");
  count("launches of " + operation);
  if (watches_launches) tell_watcher("launch", 0, operation);
}

// ------------------------------------------------------------------------------------------------ memory
//
// One reservation of twice the device's memory: the lower half holds the device's addresses and has no permissions, the upper half is
// the same memory as the host's kernels see it.

constexpr size_t kMemory = size_t(64) << 30;

char* device_base() {
  static char* base = [] {
    void* start = mmap(nullptr, 2 * kMemory, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(start != MAP_FAILED, "the simulated device found no address space");
    TORCH_CHECK(mprotect((char*)start + kMemory, kMemory, PROT_READ | PROT_WRITE) == 0, "the simulated device may not map memory");
    return (char*)start;
  }();
  return base;
}

void* host_alias(const void* device_address) { return device_address ? (char*)device_address + kMemory : nullptr; }

struct DeviceMemory {
  std::mutex lock;
  size_t top = 4096, live = 0, peak = 0;
  std::map<size_t, std::vector<size_t>> free_blocks;

  static size_t block_size(size_t bytes) {
    if (bytes > (1 << 20)) return (bytes + 4095) / 4096 * 4096;
    size_t size = 512;
    while (size < bytes) size <<= 1;
    return size;
  }

  void* take(size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    size_t size = block_size(bytes), offset = top;
    auto& list = free_blocks[size];
    if (!list.empty()) {
      offset = list.back();
      list.pop_back();
    } else {
      top += size;
      TORCH_CHECK(top < kMemory, "the simulated device is out of memory");
    }
    live += size;
    peak = std::max(peak, live);
    return device_base() + offset;
  }

  void give_back(void* address, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    size_t size = block_size(bytes);
    live -= size;
    if (size > (1 << 20)) madvise(host_alias(address), size, MADV_DONTNEED);
    free_blocks[size].push_back((char*)address - device_base());
  }
} memory;

struct DeviceAllocator final : at::Allocator {
  using Block = std::pair<void*, size_t>;
  static void nothing(void*) {}
  static void release(void* context) {
    auto* block = (Block*)context;
    memory.give_back(block->first, block->second);
    delete block;
  }
  at::DataPtr allocate(size_t bytes) override {
    c10::Device device(kSim, current_device);
    if (!bytes) return {nullptr, nullptr, &nothing, device};
    void* address = memory.take(bytes);
    return {address, new Block(address, bytes), &release, device};
  }
  at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { memcpy(host_alias(to), host_alias(from), bytes); }
};
DeviceAllocator device_allocator;
REGISTER_ALLOCATOR(kSim, &device_allocator);

// Pinned host memory, from and to which copies are asynchronous.
struct PinnedAllocator final : at::Allocator {
  std::mutex lock;
  std::map<uintptr_t, size_t> blocks;
  at::DataPtr allocate(size_t bytes) override;
  at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { memcpy(to, from, bytes); }
  bool owns(const void* address) {
    std::lock_guard<std::mutex> guard(lock);
    auto after = blocks.upper_bound((uintptr_t)address);
    if (after == blocks.begin()) return false;
    --after;
    return (uintptr_t)address < after->first + after->second;
  }
} pinned_allocator;

at::DataPtr PinnedAllocator::allocate(size_t bytes) {
  void* address = nullptr;
  TORCH_CHECK(posix_memalign(&address, 64, std::max<size_t>(bytes, 64)) == 0, "no memory to pin");
  {
    std::lock_guard<std::mutex> guard(lock);
    blocks[(uintptr_t)address] = bytes;
  }
  auto release = +[](void* block) {
    {
      std::lock_guard<std::mutex> guard(pinned_allocator.lock);
      pinned_allocator.blocks.erase((uintptr_t)block);
    }
    free(block);
  };
  return {address, address, release, c10::Device(c10::kCPU)};
}

// ------------------------------------------------------------------------------------------------ asynchronous copies
//
// A copy that nobody waits for is under way until the host's next wait. Until then the host must leave a source alone, and finds a
// destination full of 0xFF (for floats, not a number). A source that was written to meanwhile is counted as "overwritten_in_flight".

struct CopyUnderWay {
  Tensor host;       // keeps the pinned memory alive
  Tensor content;    // what was sent, or what is to be delivered
  bool to_host;
};
std::mutex copies_lock;
std::vector<CopyUnderWay> copies_under_way;

void finish_copies() {
  std::vector<CopyUnderWay> finished;
  {
    std::lock_guard<std::mutex> guard(copies_lock);
    finished.swap(copies_under_way);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  for (auto& copy : finished) {
    if (copy.to_host) copy.host.copy_(copy.content);
    else if (memcmp(copy.host.const_data_ptr(), copy.content.const_data_ptr(), copy.host.nbytes())) count("overwritten_in_flight");
  }
}

void wait(const char* kind, int64_t bytes, const std::string& operation) {
  report(kind, bytes, operation);
  count("waits");
  finish_copies();
}

// ------------------------------------------------------------------------------------------------ devices, streams, generators

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  static thread_local c10::StreamId current_stream;
  c10::DeviceType type() const override { return kSim; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before(kSim, current_device);
    uncheckedSetDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kSim, current_device}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  // Streams have numbers and are remembered; what is launched on them is carried out at once, in the order of the host.
  c10::Stream stream(c10::Device device, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, device.index() < 0 ? current_device : device.index()), id);
  }
  c10::Stream getStream(c10::Device device) const override { return stream(device, current_stream); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return stream(device, next++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    auto before = stream(to.device(), current_stream);
    current_stream = to.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDeviceCount; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override { *event = (void*)1; }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { wait("synchronize", 0, "stream"); }
  void synchronizeEvent(void*) const override { wait("synchronize", 0, "event"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { wait("synchronize", 0, "device"); }
};
thread_local c10::StreamId DeviceGuard::current_stream = 0;
C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard);

// The device's generator is a Mersenne twister under another seed than the CPU's, so that equal seeds give unequal numbers.
struct DeviceGenerator final : at::CPUGeneratorImpl {
  static constexpr uint64_t kDisplacement = 0x9E3779B97F4A7C15ull;
  explicit DeviceGenerator(c10::DeviceIndex index) : at::CPUGeneratorImpl(c10::default_rng_seed_val ^ kDisplacement) {
    device_ = c10::Device(kSim, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  void set_current_seed(uint64_t seed) override { at::CPUGeneratorImpl::set_current_seed(seed ^ kDisplacement); }
  uint64_t current_seed() const override { return at::CPUGeneratorImpl::current_seed() ^ kDisplacement; }
};

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::vector<at::Generator> generators = [] {
    std::vector<at::Generator> made;
    for (int device = 0; device < kDeviceCount; device++) made.push_back(at::make_generator<DeviceGenerator>(device));
    return made;
  }();
  return generators.at(index < 0 ? current_device : index);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(index < 0 ? current_device : index);
  }
  c10::DeviceIndex deviceCount() const override { return kDeviceCount; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    auto before = current_device;
    if (index >= 0) current_device = index;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  bool isPinnedPtr(const void* address) const override { return pinned_allocator.owns(address); }
  at::Device getDeviceFromPtr(void*) const override { return {kSim, current_device}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());  // memory stays on the tensor's own device, whichever is current
    auto fresh = device_allocator.allocate(bytes);
    size_t kept = std::min(bytes, storage.nbytes());
    if (kept) memcpy(host_alias(fresh.get()), host_alias(storage.data()), kept);
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(bytes);
  }
};
struct RegisterHooks {
  RegisterHooks() { at::RegisterPrivateUse1HooksInterface(new Hooks()); }
} register_hooks;

// ------------------------------------------------------------------------------------------------ tensors and their host views

bool is_on_device(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kSim; }

Tensor host_view(const Tensor& tensor) {
  auto& storage = tensor.storage();
  c10::Storage alias(c10::Storage::use_byte_size_t(), storage.nbytes(),
                     at::DataPtr(host_alias(storage.data_ptr().get()), c10::Device(c10::kCPU)), nullptr, false);
  auto view = at::detail::make_tensor<c10::TensorImpl>(std::move(alias), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  return view;
}

void refuse_float64(at::ScalarType dtype) {
  TORCH_CHECK_TYPE(!(switches.no_float64 && (dtype == at::kDouble || dtype == at::kComplexDouble)),
                   "Cannot convert a sim Tensor to float64 dtype as the sim framework doesn't support float64. Please use float32 instead.");
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  auto type = c10::dtype_or_default(dtype);
  refuse_float64(type);
  c10::DeviceGuard guard(device.value_or(c10::Device(kSim, current_device)));
  return at::detail::empty_generic(size, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type, format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  auto type = c10::dtype_or_default(dtype);
  refuse_float64(type);
  c10::DeviceGuard guard(device.value_or(c10::Device(kSim, current_device)));
  return at::detail::empty_strided_generic(size, stride, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

// Moves a result of the CPU's kernel to the device; no copy in the sense of the counters.
Tensor to_device(const Tensor& host, c10::Device device) {
  auto there = empty_strided(host.sizes(), host.strides(), host.scalar_type(), {}, device, {});
  at::AutoDispatchBelowADInplaceOrView below;
  host_view(there).copy_(host);
  return there;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  int64_t bytes = from.numel() * from.element_size();
  bool leaves = is_on_device(from) && !is_on_device(to), arrives = !is_on_device(from) && is_on_device(to);
  const Tensor& host = leaves ? to : from;
  // Only contiguous copies of one dtype between pinned and device memory are asynchronous, as on a GPU.
  bool asynchronous = non_blocking && (leaves || arrives) && host.is_pinned() && host.is_contiguous() && from.dtype() == to.dtype();
  at::AutoDispatchBelowADInplaceOrView below;
  if (leaves && asynchronous) {
    report("to_host_async", bytes, "copy");
    Tensor content = host_view(from).clone();
    memset(to.data_ptr(), 0xFF, to.nbytes());
    std::lock_guard<std::mutex> guard(copies_lock);
    copies_under_way.push_back({to, content, true});
    return to;
  }
  if (leaves) wait("to_host", bytes, "copy");
  if (arrives && asynchronous) {
    report("to_device_async", bytes, "copy");
    std::lock_guard<std::mutex> guard(copies_lock);
    copies_under_way.push_back({from, from.clone(), false});
  } else if (arrives) wait("to_device", bytes, "copy");
  if (!leaves && !arrives) launch("copy");
  (is_on_device(to) ? host_view(to) : to).copy_(is_on_device(from) ? host_view(from) : from);
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef symbolic, std::optional<at::MemoryFormat> format) {
  auto size = C10_AS_INTARRAYREF_SLOW(symbolic);
  auto* impl = self.unsafeGetTensorImpl();
  if (impl->sizes() != size) {
    impl->generic_set_sizes_contiguous(size);
    size_t bytes = (impl->numel() + impl->storage_offset()) * impl->dtype().itemsize();
    if (impl->storage().nbytes() < bytes) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(impl->storage(), bytes);
  }
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

at::Scalar local_scalar(const Tensor& self) {
  wait("item", self.element_size(), "item");
  at::AutoDispatchBelowADInplaceOrView below;
  return host_view(self).item();
}

Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, storage, offset, size, stride);
}
Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  int64_t elements = storage.nbytes() / self.element_size();
  return set_storage(self, storage, 0, {elements}, {1});
}
Tensor& set_to_nothing(Tensor& self) {
  c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, device_allocator.allocate(0), &device_allocator, true);
  return set_storage(self, nothing, 0, {0}, {});
}
Tensor& set_to_tensor(Tensor& self, const Tensor& other) {
  if (self.unsafeGetTensorImpl() == other.unsafeGetTensorImpl()) return self;
  return set_storage(self, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

// ------------------------------------------------------------------------------------------------ arithmetic of a device

using Names = std::set<std::string>;
// Operations whose result the host must know, for instance because it is the size of a tensor.
const Names kWaiting = {"aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero", "aten::_unique2", "aten::unique_dim",
                        "aten::unique_consecutive", "aten::repeat_interleave", "aten::_linalg_check_errors", "aten::bincount"};
// Operations that take CPU tensors beside device tensors.
const Names kMixing = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put", "aten::_unsafe_index",
                       "aten::_pack_padded_sequence", "aten::_pack_padded_sequence_backward"};
// Operations that CUDA carries out with atomic additions unless deterministic algorithms are asked for.
const Names kUnordered = {"aten::embedding_dense_backward", "aten::index_add", "aten::index_add_", "aten::scatter_add", "aten::scatter_add_",
                          "aten::index_put_", "aten::_index_put_impl_", "aten::_embedding_bag_dense_backward",
                          "aten::upsample_bilinear2d_backward", "aten::max_pool2d_with_indices_backward",
                          "aten::_adaptive_avg_pool2d_backward", "aten::cumsum"};
const Names kProducts = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addmv", "aten::dot"};

Tensor rounded_to_tf32(const Tensor& tensor) {
  if (!tensor.defined() || tensor.scalar_type() != at::kFloat) return tensor;
  auto result = tensor.clone(at::MemoryFormat::Contiguous);
  auto* bits = (uint32_t*)result.data_ptr();
  for (int64_t at = 0; at < result.numel(); at++) bits[at] = (bits[at] + 0x1000u) & ~0x1FFFu;
  return result;
}

bool is_plain_float(const Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.numel() && tensor.is_non_overlapping_and_dense();
}
float* floats_of(const Tensor& tensor) {
  return (float*)(is_on_device(tensor) ? host_alias(tensor.data_ptr()) : tensor.data_ptr());
}
float nudge(float value, bool up) { return std::nextafter(value, up ? INFINITY : -INFINITY); }

// Moves a few elements by one unit in the last place, differently at every call.
void add_in_another_order(const Tensor& tensor) {
  if (!is_plain_float(tensor)) return;
  static std::mutex lock;
  static std::mt19937_64 coins{1};
  std::lock_guard<std::mutex> guard(lock);
  auto* values = floats_of(tensor);
  for (int k = 0; k < 3; k++) {
    auto& value = values[coins() % tensor.numel()];
    value = nudge(value, coins() & 1);
  }
}

// Moves every element by one unit in the last place, up or down by a hash of the element's place and the result's shape.
void round_by_shape(const Tensor& tensor) {
  if (!is_plain_float(tensor)) return;
  uint64_t shape = 0xCBF29CE484222325ull;
  for (auto size : tensor.sizes()) shape = (shape ^ uint64_t(size)) * 0x100000001B3ull;
  auto* values = floats_of(tensor);
  for (int64_t at = 0; at < tensor.numel(); at++) values[at] = nudge(values[at], ((shape ^ uint64_t(at)) * 0x9E3779B97F4A7C15ull) >> 63);
}

bool sums_in_any_order(const std::string& name) {
  return switches.unordered && kUnordered.count(name) && !at::globalContext().deterministicAlgorithms();
}

// ------------------------------------------------------------------------------------------------ every operation without a kernel of its own

template <class Visit>
void for_each_tensor(c10::IValue& value, Visit visit) {
  if (value.isTensor()) visit(value.toTensor());
  else if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) visit(tensor);
  else if (value.isOptionalTensorList())
    for (auto&& item : value.toOptionalTensorList()) {
      OptionalTensor tensor = item;
      if (tensor) visit(*tensor);
    }
}

template <class Change>
void change_tensors(c10::IValue& value, Change change) {
  if (value.isTensor()) value = c10::IValue(change(value.toTensor()));
  else if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (auto& tensor : tensors) tensor = change(tensor);
    value = c10::IValue(tensors);
  } else if (value.isOptionalTensorList()) {
    c10::List<OptionalTensor> tensors;
    for (auto&& item : value.toOptionalTensorList()) {
      OptionalTensor tensor = item;
      tensors.push_back(tensor && tensor->defined() ? OptionalTensor(change(*tensor)) : tensor);
    }
    value = c10::IValue(tensors);
  }
}

// Runs the CPU's kernel with the device's generator in the place of the CPU's, which is put back afterwards.
void run_with_device_generator(const c10::OperatorHandle& op, torch::jit::Stack* stack, const at::Generator& device_generator) {
  struct Held {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  auto held_by = [](at::CPUGeneratorImpl* from) {
    return Held{from->engine(), from->next_float_normal_sample(), from->next_double_normal_sample()};
  };
  auto put_into = [](at::CPUGeneratorImpl* into, const Held& held) {
    into->set_engine(held.engine);
    into->set_next_float_normal_sample(held.next_float);
    into->set_next_double_normal_sample(held.next_double);
  };
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> guard(one_at_a_time);
  auto host = at::detail::getDefaultCPUGenerator();
  auto* of_host = at::check_generator<at::CPUGeneratorImpl>(host);
  auto* of_device = static_cast<at::CPUGeneratorImpl*>(device_generator.unsafeGetGeneratorImpl());
  Held before = held_by(of_host);
  put_into(of_host, held_by(of_device));
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  } catch (...) {
    put_into(of_host, before);
    throw;
  }
  put_into(of_device, held_by(of_host));
  put_into(of_host, before);
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  size_t inputs = schema.arguments().size(), first = stack->size() - inputs;

  // Where is it carried out? On the device of its first tensor, or of its device argument.
  std::optional<c10::Device> place;
  for (size_t i = 0; i < inputs && !place; i++)
    for_each_tensor((*stack)[first + i], [&](const Tensor& tensor) { if (is_on_device(tensor) && !place) place = tensor.device(); });
  for (size_t i = 0; i < inputs && !place; i++)
    if ((*stack)[first + i].isDevice()) place = (*stack)[first + i].toDevice();
  if (!place) place = c10::Device(kSim, current_device);

  // What does it cost? A launch, and a wait where the host must see the result: sizes of results, masks as indices. (Reading by a
  // mask calls nonzero, which is counted.)
  launch(name);
  if (kWaiting.count(name)) wait("wait", 0, name);
  if (name == "aten::_index_put_impl_" || name == "aten::index_put_") {
    bool mask = false;
    for_each_tensor((*stack)[first + 1], [&](const Tensor& tensor) {
      mask |= is_on_device(tensor) && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
    });
    if (mask) wait("wait", 0, name + " by a mask");
  }

  // The arguments as the host sees them. Tensors of several devices are refused, as by CUDA; scalars may come from the CPU.
  std::vector<c10::IValue> before(stack->end() - inputs, stack->end());
  std::vector<std::pair<Tensor, Tensor>> resized;             // (device tensor, what the kernel writes) for empty outputs
  std::unordered_map<c10::TensorImpl*, Tensor> written;       // host view to device tensor
  bool product = kProducts.count(name) > 0;
  bool tf32 = switches.tf32 && product && at::globalContext().allowTF32CuBLAS();
  std::optional<at::Generator> generator;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    for (size_t i = 0; i < inputs; i++) {
      auto& value = (*stack)[first + i];
      auto* alias = schema.arguments()[i].alias_info();
      bool is_output = alias && alias->isWrite();
      change_tensors(value, [&](const Tensor& tensor) -> Tensor {
        if (!tensor.defined()) return tensor;
        bool foreign = is_on_device(tensor) ? tensor.device() != *place : !kMixing.count(name);
        TORCH_CHECK(!foreign || tensor.dim() == 0, "Expected all tensors to be on the same device, but found at least two devices, ", *place,
                    " and ", tensor.device(), "! (", name, ")");
        if (!is_on_device(tensor)) return tensor;
        if (is_output && tensor.numel() == 0) {
          Tensor fresh = at::empty(tensor.sizes(), tensor.options().device(c10::kCPU));
          resized.emplace_back(tensor, fresh);
          return fresh;
        }
        Tensor view = host_view(tensor);
        if (is_output) written[view.unsafeGetTensorImpl()] = tensor;
        return tf32 && !is_output ? rounded_to_tf32(view) : view;
      });
      if (value.isDevice()) value = c10::IValue(c10::Device(c10::kCPU));
      else if (value.isGenerator()) {
        generator = value.toGenerator();
        TORCH_CHECK(generator->device().type() == kSim, "Expected a 'sim' device type for generator but found '",
                    generator->device().type(), "'");
        value = c10::IValue();
      }
    }
    if (op.hasTag(at::Tag::nondeterministic_seeded)) {
      run_with_device_generator(op, stack, generator ? *generator : default_generator(place->index()));
    } else {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    }
  }

  // Outputs that were empty take the size that the kernel gave them.
  for (auto& [device_tensor, host] : resized) {
    if (device_tensor.sizes() != host.sizes()) device_tensor.resize_(host.sizes());
    if (host.numel()) {
      at::AutoDispatchBelowADInplaceOrView below;
      if (device_tensor.strides() != host.strides()) device_tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
      host_view(device_tensor).copy_(host);
    }
    written[host.unsafeGetTensorImpl()] = device_tensor;
  }

  // The results go to the device, or are the arguments that were written to; then the switches change their last bits.
  bool in_any_order = sums_in_any_order(name), by_shape = switches.round_by_shape && product;
  auto finish = [&](const Tensor& tensor) {
    if (in_any_order) add_in_another_order(tensor);
    if (by_shape) round_by_shape(tensor);
    return tensor;
  };
  size_t outputs = schema.returns().size(), first_output = stack->size() - outputs;
  for (size_t i = 0; i < outputs; i++) {
    auto& value = (*stack)[first_output + i];
    auto* alias = schema.returns()[i].alias_info();
    if (value.isTensor() && alias && alias->isWrite()) {
      bool found = false;
      for (size_t j = 0; j < inputs && !found; j++) {
        auto* of_input = schema.arguments()[j].alias_info();
        found = of_input && *of_input == *alias && before[j].isTensor();
        if (found) value = before[j];
      }
      if (found && is_on_device(value.toTensor())) {
        finish(value.toTensor());
        continue;
      }
    }
    change_tensors(value, [&](const Tensor& tensor) -> Tensor {
      if (!tensor.defined()) return tensor;
      auto known = written.find(tensor.unsafeGetTensorImpl());
      if (known != written.end()) return finish(known->second);
      return finish(tensor.device().type() == c10::kCPU ? to_device(tensor, *place) : tensor);
    });
  }
}

// ------------------------------------------------------------------------------------------------ operations that the CPU has no kernel for

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  Tensor gates = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias;
  if (hidden_bias && hidden_bias->defined()) gates = gates + *hidden_bias;
  auto part = gates.chunk(4, 1);
  Tensor i = part[0].sigmoid(), f = part[1].sigmoid(), g = part[2].tanh(), o = part[3].sigmoid();
  Tensor next_cell = f * cell + i * g;
  return {o * next_cell.tanh(), next_cell, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hidden, const OptionalTensor& grad_cell, const Tensor& cell,
                                                      const Tensor& next_cell, const Tensor& workspace, bool has_bias) {
  auto part = workspace.chunk(4, 1);
  Tensor i = part[0], f = part[1], g = part[2], o = part[3], t = next_cell.tanh();
  Tensor gh = grad_hidden && grad_hidden->defined() ? *grad_hidden : at::zeros_like(next_cell);
  Tensor gc = gh * o * (1 - t * t);
  if (grad_cell && grad_cell->defined()) gc = gc + *grad_cell;
  Tensor gates = at::cat({gc * g * i * (1 - i), gc * cell * f * (1 - f), gc * i * (1 - g * g), gh * t * o * (1 - o)}, 1);
  return {gates, gc * f, has_bias ? gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  auto x = (input_bias && input_bias->defined() ? input_gates + *input_bias : input_gates).chunk(3, 1);
  auto h = (hidden_bias && hidden_bias->defined() ? hidden_gates + *hidden_bias : hidden_gates).chunk(3, 1);
  Tensor r = (x[0] + h[0]).sigmoid(), z = (x[1] + h[1]).sigmoid(), n = (x[2] + r * h[2]).tanh();
  return {(1 - z) * n + z * hidden, at::cat({r, z, n, hidden, h[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad, const Tensor& workspace, bool has_bias) {
  auto part = workspace.chunk(5, 1);
  Tensor r = part[0], z = part[1], n = part[2], hidden = part[3], hn = part[4];
  Tensor gn = grad * (1 - z) * (1 - n * n), gz = grad * (hidden - n) * z * (1 - z), gr = gn * hn * r * (1 - r);
  Tensor gi = at::cat({gr, gz, gn}, 1), gh = at::cat({gr, gz, gn * r}, 1);
  return {gi, gh, grad * z, has_bias ? gi.sum(0) : Tensor(), has_bias ? gh.sum(0) : Tensor()};
}

bool convolutions_round() { return switches.tf32 && at::globalContext().allowTF32CuDNN(at::Float32Op::CONV); }

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, c10::IntArrayRef stride, c10::IntArrayRef padding,
                   c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups) {
  TORCH_CHECK(input.device() == weight.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
              input.device(), " and ", weight.device(), "! (convolution)");
  launch("aten::convolution");
  at::AutoDispatchBelowADInplaceOrView below;
  Tensor x = host_view(input), w = host_view(weight);
  if (convolutions_round()) x = rounded_to_tf32(x), w = rounded_to_tf32(w);
  auto b = bias && bias->defined() ? OptionalTensor(host_view(*bias)) : bias;
  auto result = to_device(at::convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups), input.device());
  if (switches.round_by_shape) round_by_shape(result);
  return result;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight, c10::IntArrayRef stride,
                                                        c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                                                        c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  launch("aten::convolution_backward");
  at::AutoDispatchBelowADInplaceOrView below;
  Tensor g = host_view(grad), x = host_view(input), w = host_view(weight);
  if (convolutions_round()) g = rounded_to_tf32(g), x = rounded_to_tf32(x), w = rounded_to_tf32(w);
  auto bias_size = c10::IntArrayRef{transposed ? weight.size(1) * groups : weight.size(0)};
  auto [gx, gw, gb] = at::convolution_backward(g, x, w, bias_size, stride, padding, dilation, transposed, output_padding, groups, mask);
  auto up = [&](const Tensor& tensor) { return tensor.defined() ? to_device(tensor, input.device()) : tensor; };
  auto result = std::make_tuple(up(gx), up(gw), up(gb));
  if (switches.unordered && !at::globalContext().deterministicAlgorithms()) {
    add_in_another_order(std::get<1>(result));
    add_in_another_order(std::get<2>(result));
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize_);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_", &set_to_nothing);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_to_tensor);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  // Operations on lists are one launch on a GPU, not one per tensor as PyTorch's composite kernels would count.
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::_foreach_", 0) != 0) continue;
    std::string overload = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    m.impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

// Copies see conjugate and negative views as they are; PyTorch would resolve them by a copy, which would come here again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

// ------------------------------------------------------------------------------------------------ what Python calls, by ctypes

extern "C" {
void sim_set_switches(bool tf32, bool by_shape, bool unordered, bool no_float64) { switches = {tf32, by_shape, unordered, no_float64}; }
void sim_set_watcher(Watcher function, bool of_launches) { watcher = function, watches_launches = of_launches; }
void sim_reset_counters() {
  std::lock_guard<std::mutex> guard(counters_lock);
  counters.clear();
  memory.peak = memory.live;
}
// Writes the counters as lines "name\tvalue" and returns how many characters all of them take.
size_t sim_read_counters(char* text, size_t capacity) {
  std::lock_guard<std::mutex> guard(counters_lock);
  std::string all;
  for (auto& [name, value] : counters) all += name + "\t" + std::to_string(value) + "\n";
  if (all.size() < capacity) memcpy(text, all.c_str(), all.size() + 1);
  return all.size();
}
size_t sim_live_bytes() { return memory.live; }
size_t sim_peak_bytes() { return memory.peak; }
int sim_current_device() { return current_device; }
void sim_set_device(int index) { current_device = c10::DeviceIndex(index); }
void sim_synchronize() { wait("synchronize", 0, "device"); }
PyObject* sim_default_generator(int index) { return THPGenerator_initDefaultGenerator(default_generator(c10::DeviceIndex(index))); }
}
