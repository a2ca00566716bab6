// Modules and functions: loads a cubin of the real compilers (or an image of this folder's
// nvrtc.cc), takes architecture, names, sizes of arguments, registers, shared memory and launch
// bounds from it, and runs the emulated kernel of the same name.
#include "driver.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>

namespace twin {

struct Function {
  std::string name;
  emulate::Launch code{};
  const emulate::Kernel *kernel = nullptr;
  unsigned static_shared = 0, dynamic_max = 0, registers = 0, threads_max = 1024;
  std::vector<size_t> sizes;  // of arguments, as the cubin says them
};

namespace {

struct Module {
  std::map<std::string, std::unique_ptr<Function>> functions;
};

std::set<Module *> modules;
std::set<Function *> functions;

// ---- the emulated kernels ----
struct Emulated {
  const emulate::Family *family;
  const emulate::Kernel *kernel;
};

std::string folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<void *>(&folder), &info);
  std::string path = info.dli_fname ? info.dli_fname : "";
  return path.substr(0, path.rfind('/') + 1) + "kernels/";
}

// All kernels for heads of one size: libraries `FAMILY-SIZE.so` and `FAMILY-any.so`.
const std::map<std::string, Emulated> &emulated(int head_dim) {
  static std::map<int, std::map<std::string, Emulated>> known;
  auto found = known.find(head_dim);
  if (found != known.end()) return found->second;
  auto &kernels = known[head_dim];
  std::string exact = "-" + std::to_string(head_dim) + ".so", any = "-any.so";
  DIR *list = opendir(folder().c_str());
  while (dirent *entry = list ? readdir(list) : nullptr) {
    std::string name = entry->d_name;
    if (!name.ends_with(exact) && !name.ends_with(any)) continue;
    void *library = dlopen((folder() + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      fprintf(stderr, "emulated CUDA: %s\n", dlerror());
      continue;
    }
    auto family_of =
        reinterpret_cast<const emulate::Family *(*)()>(dlsym(library, "rolltape_family"));
    const emulate::Family *family = family_of();
    for (int i = 0; i < family->count; i++)
      kernels[family->kernels[i].name] = {family, &family->kernels[i]};
  }
  if (list) closedir(list);
  return kernels;
}

// ---- the contents of an image ----
struct Entry {
  unsigned static_shared = 0, registers = 0, threads_max = 1024;
  std::vector<size_t> sizes;
  bool known_sizes = false;
};
struct Image {
  int architecture = 0, head_dim = 0, driver_min = 0;
  std::map<std::string, Entry> entries;
};

constexpr char PLAIN[] = "ROLLTAPE-EMULATED\n";

Image read_plain(const char *text) {
  Image image;
  std::istringstream lines(text + sizeof PLAIN - 1);
  std::string key, value;
  while (lines >> key >> value) {
    if (key == "architecture") image.architecture = std::stoi(value);
    if (key == "head_dim") image.head_dim = std::stoi(value);
    if (key == "kernel") image.entries[value];
  }
  return image;
}

template <class T> T read_at(const char *from) {
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

// The attributes of a kernel: a byte of form, one of kind, and four bytes or a counted payload.
void read_attributes(const char *at, const char *end, Entry *entry,
                     std::map<uint32_t, uint32_t> *registers) {
  while (at + 4 <= end) {
    unsigned char form = at[0], kind = at[1];
    size_t size = form == 4 ? read_at<uint16_t>(at + 2) : 0;
    const char *payload = at + 4;
    if (payload + size > end) return;
    if (kind == 0x17 && entry && size >= 12) {  // an argument: its number, place and size
      unsigned ordinal = read_at<uint16_t>(payload + 4);
      if (entry->sizes.size() <= ordinal) entry->sizes.resize(ordinal + 1);
      entry->sizes[ordinal] = read_at<uint32_t>(payload + 8) >> 18;
    }
    if (kind == 0x05 && entry && size >= 12)  // launch bounds
      entry->threads_max = read_at<uint32_t>(payload) * read_at<uint32_t>(payload + 4) *
                           read_at<uint32_t>(payload + 8);
    if (kind == 0x2f && registers && size >= 8)
      (*registers)[read_at<uint32_t>(payload)] = read_at<uint32_t>(payload + 4);
    at = payload + size;
  }
}

struct Elf {
  const char *base;
  const Elf64_Ehdr *header;
  const Elf64_Shdr *sections;
  const char *names;

  explicit Elf(const char *image)
      : base(image), header(reinterpret_cast<const Elf64_Ehdr *>(image)),
        sections(reinterpret_cast<const Elf64_Shdr *>(image + header->e_shoff)),
        names(image + sections[header->e_shstrndx].sh_offset) {}
  std::string name(int i) const { return names + sections[i].sh_name; }
  const char *data(int i) const { return base + sections[i].sh_offset; }
};

void read_symbols(const Elf &elf, int table, const std::map<uint32_t, uint32_t> &registers,
                  Image *image) {
  const Elf64_Shdr &section = elf.sections[table];
  auto symbols = reinterpret_cast<const Elf64_Sym *>(elf.data(table));
  const char *strings = elf.data(static_cast<int>(section.sh_link));
  for (size_t i = 0; i < section.sh_size / sizeof(Elf64_Sym); i++) {
    const Elf64_Sym &symbol = symbols[i];
    std::string name = strings + symbol.st_name;
    bool inside = symbol.st_shndx > 0 && symbol.st_shndx < elf.header->e_shnum;
    if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && image->entries.count(name)) {
      auto found = registers.find(static_cast<uint32_t>(i));
      if (found != registers.end()) image->entries[name].registers = found->second;
    }
    if (name == "rolltape_head_dim" && inside)
      image->head_dim = read_at<int>(elf.data(symbol.st_shndx) + symbol.st_value);
  }
}

Image read_cubin(const char *bytes) {
  Image image;
  Elf elf(bytes);
  // Since CUDA 13 the architecture is in another byte, and older drivers do not know this form.
  bool recent = elf.header->e_ident[EI_ABIVERSION] >= 8;
  image.architecture = static_cast<int>(elf.header->e_flags >> (recent ? 8 : 0) & 0xff);
  image.driver_min = recent ? 13000 : 0;
  std::map<uint32_t, uint32_t> registers;
  for (int i = 0; i < elf.header->e_shnum; i++)
    if (elf.name(i).starts_with(".text.")) image.entries[elf.name(i).substr(6)];
  for (int i = 0; i < elf.header->e_shnum; i++) {
    std::string name = elf.name(i);
    const char *at = elf.data(i), *end = at + elf.sections[i].sh_size;
    if (name == ".nv.info") read_attributes(at, end, nullptr, &registers);
    if (name.starts_with(".nv.info.") && image.entries.count(name.substr(9))) {
      Entry &entry = image.entries[name.substr(9)];
      entry.known_sizes = true;
      read_attributes(at, end, &entry, nullptr);
    }
    if (name.starts_with(".nv.shared.") && image.entries.count(name.substr(11)))
      image.entries[name.substr(11)].static_shared =
          static_cast<unsigned>(elf.sections[i].sh_size);
  }
  for (int i = 0; i < elf.header->e_shnum; i++)
    if (elf.sections[i].sh_type == SHT_SYMTAB) read_symbols(elf, i, registers, &image);
  return image;
}

unsigned shared_limit() { return settings().capability >= 90 ? 232448 : 166912; }

Result load(Module *module, const Image &image) {
  // A device runs programs for older devices of its major version, unless they are for one device
  // only.
  int capability = static_cast<int>(settings().capability);
  bool kin = image.architecture / 10 == capability / 10 && image.architecture <= capability;
  if (!kin || settings().driver < image.driver_min) return NO_BINARY_FOR_GPU;
  auto &kernels = emulated(image.head_dim);
  for (auto &[name, entry] : image.entries) {
    auto function = std::make_unique<Function>();
    function->name = name;
    function->static_shared = entry.static_shared;
    function->registers = entry.registers;
    function->threads_max = entry.threads_max;
    auto found = kernels.find(name);
    if (found != kernels.end()) {
      const emulate::Kernel *kernel = found->second.kernel;
      const emulate::Family *family = found->second.family;
      function->kernel = kernel;
      function->code = {kernel->name, kernel->invoke, nullptr, {}, {}, 0,
                        family->shared_begin, family->shared_end};
      std::vector<size_t> sizes(kernel->sizes, kernel->sizes + kernel->count);
      if (entry.known_sizes && sizes != entry.sizes)
        return fault(INVALID_IMAGE, "kernel " + name + ": the image takes other arguments than "
                                                       "the emulated kernel");
      function->sizes = sizes;
    }
    module->functions[name] = std::move(function);
  }
  return SUCCESS;
}

Result refuse(const Function &function, emulate::Index block, unsigned shared) {
  unsigned threads = block.x * block.y * block.z;
  std::string name = "kernel " + function.name + ": ";
  if (threads == 0 || threads > function.threads_max)
    return fault(INVALID_VALUE, name + std::to_string(threads) + " threads, bounds are " +
                                    std::to_string(function.threads_max));
  if (function.registers * ((threads + 31) / 32 * 32) > 65536)
    return fault(LAUNCH_OUT_OF_RESOURCES, name + std::to_string(threads) + " threads of " +
                                              std::to_string(function.registers) + " registers");
  unsigned most = std::max(function.dynamic_max, 49152 - std::min(49152u, function.static_shared));
  if (shared > most)
    return fault(INVALID_VALUE, name + std::to_string(shared) +
                                    " bytes of dynamic shared memory, allowed are " +
                                    std::to_string(most));
  return SUCCESS;
}

// Finds the kernel that may still be running when an early launch begins.
Result find_predecessor(emulate::Launch *code) {
  if (!code->early) return SUCCESS;
  counts().early_launches++;
  const Stream &stream = *running_stream();
  if (stream.latest == LIBRARY)
    return fault(LAUNCH_FAILED, std::string("kernel ") + code->kernel +
                                    " is launched early behind a kernel of a library");
  bool behind_kernel = stream.latest == KERNEL;
  code->predecessor = behind_kernel ? stream.latest_blocks : emulate::Blocks{0, 0};
  return SUCCESS;
}

} // namespace

Result launch(Function *function, const Shape &shape, Stream *stream, void **arguments) {
  if (!functions.count(function)) return INVALID_HANDLE;
  if (!stream) return INVALID_HANDLE;
  const emulate::Index &grid = shape.grid;
  if (grid.x * grid.y * grid.z == 0) return INVALID_VALUE;
  if (Result wrong = refuse(*function, shape.block, shape.shared)) return wrong;
  if (!function->kernel)
    return fault(NOT_FOUND, "kernel " + function->name + " was not built for the emulator");
  if (!arguments && !function->sizes.empty()) return INVALID_VALUE;
  // The driver copies the arguments during the call; later changes by the host have no effect.
  std::vector<std::vector<char>> values;
  for (size_t i = 0; i < function->sizes.size(); i++) {
    auto from = static_cast<const char *>(arguments[i]);
    values.emplace_back(from, from + function->sizes[i]);
  }
  emulate::Launch code = function->code;
  code.grid = grid, code.block = shape.block, code.dynamic_bytes = shape.shared;
  code.early = shape.early;
  auto work = [code, values]() mutable {
    counts().launches++;
    auto &fail = settings().fail_launch;
    if (fail > 0 && --fail == 0) return fault(LAUNCH_FAILED, "a launch that was to fail");
    if (Result wrong = find_predecessor(&code)) return wrong;
    std::vector<void *> places;
    for (auto &value : values) places.push_back(value.data());
    code.arguments = places.data();
    const char *wrong = emulate::run(code);
    return wrong ? fault(LAUNCH_FAILED, wrong) : SUCCESS;
  };
  return enqueue(stream, work, KERNEL);
}

extern "C" {
#define API __attribute__((visibility("default"))) int
#define BEGIN                                        \
  std::lock_guard<std::recursive_mutex> guard(lock); \
  if (Result wrong = ready()) return wrong

API cuModuleLoadData(void **module, const void *image) {
  BEGIN;
  if (!module || !image) return INVALID_VALUE;
  if (captures(1)) return STREAM_CAPTURE_UNSUPPORTED;
  auto bytes = static_cast<const char *>(image);
  bool elf = memcmp(bytes, ELFMAG, SELFMAG) == 0 && read_at<uint16_t>(bytes + 18) == 190;
  bool plain = !elf && memcmp(bytes, PLAIN, sizeof PLAIN - 1) == 0;
  if (!elf && !plain) return INVALID_IMAGE;
  auto made = std::make_unique<Module>();
  Result result = load(made.get(), elf ? read_cubin(bytes) : read_plain(bytes));
  if (result) return result;
  for (auto &[name, function] : made->functions) functions.insert(function.get());
  modules.insert(made.get());
  *module = made.release();
  return SUCCESS;
}

API cuModuleLoadDataEx(void **module, const void *image, unsigned, void *, void *) {
  return cuModuleLoadData(module, image);
}

API cuModuleUnload(void *handle) {
  BEGIN;
  auto module = static_cast<Module *>(handle);
  if (!modules.count(module)) return INVALID_HANDLE;
  run_everything();
  for (auto &[name, function] : module->functions) functions.erase(function.get());
  modules.erase(module);
  delete module;
  return SUCCESS;
}

API cuModuleGetFunction(void **function, void *handle, const char *name) {
  BEGIN;
  auto module = static_cast<Module *>(handle);
  if (!function || !name || !modules.count(module)) return INVALID_VALUE;
  auto found = module->functions.find(name);
  if (found == module->functions.end()) return NOT_FOUND;
  *function = found->second.get();
  return SUCCESS;
}

API cuFuncGetAttribute(int *value, int attribute, void *handle) {
  BEGIN;
  auto function = static_cast<Function *>(handle);
  if (!value || !functions.count(function)) return INVALID_HANDLE;
  switch (attribute) {
  case 0: *value = static_cast<int>(function->threads_max); break;
  case 1: *value = static_cast<int>(function->static_shared); break;
  case 2: case 3: *value = 0; break;
  case 4: *value = static_cast<int>(function->registers); break;
  case 5: case 6: *value = static_cast<int>(settings().capability); break;
  case 8: *value = static_cast<int>(std::max(function->dynamic_max, 49152u)); break;
  default: *value = 0;
  }
  return SUCCESS;
}

API cuFuncSetAttribute(void *handle, int attribute, int value) {
  BEGIN;
  auto function = static_cast<Function *>(handle);
  if (!functions.count(function)) return INVALID_HANDLE;
  if (attribute == 9) return value >= -1 && value <= 100 ? SUCCESS : INVALID_VALUE;
  if (attribute != 8) return INVALID_VALUE;
  if (value < 0 || static_cast<unsigned>(value) + function->static_shared > shared_limit())
    return INVALID_VALUE;
  function->dynamic_max = static_cast<unsigned>(value);
  return SUCCESS;
}

// As many blocks as registers, threads and shared memory of a multiprocessor allow.
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *handle, int threads,
                                                size_t shared) {
  BEGIN;
  auto function = static_cast<Function *>(handle);
  if (!blocks || threads <= 0 || !functions.count(function)) return INVALID_VALUE;
  unsigned by_threads = 2048 / static_cast<unsigned>(threads);
  unsigned registers = std::max(1u, function->registers) * static_cast<unsigned>(threads);
  size_t memory = std::max<size_t>(1, shared + function->static_shared + 1024);
  *blocks = static_cast<int>(
      std::min<size_t>({by_threads, 65536 / registers, shared_limit() / memory, 32}));
  return SUCCESS;
}

API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
  BEGIN;
  if (extra) return NOT_SUPPORTED;
  Shape shape = {{gx, gy, gz}, {bx, by, bz}, shared, false};
  return launch(static_cast<Function *>(function), shape, stream_of(stream), arguments);
}

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int number;
  } value;
};
constexpr int IGNORE = 0, PROGRAMMATIC_STREAM_SERIALIZATION = 6;
constexpr long long EDGES_OF_KERNELS = 12030;  // the first driver that records early launches

struct LaunchConfig {
  unsigned gx, gy, gz, bx, by, bz, shared;
  void *stream;
  const LaunchAttribute *attributes;
  unsigned count;
};
API cuLaunchKernelEx(const LaunchConfig *config, void *function, void **arguments, void **extra) {
  BEGIN;
  if (!config || (config->count > 0 && !config->attributes)) return INVALID_VALUE;
  if (extra) return NOT_SUPPORTED;
  Shape shape = {{config->gx, config->gy, config->gz}, {config->bx, config->by, config->bz},
                 config->shared, false};
  for (unsigned i = 0; i < config->count; i++) {
    const LaunchAttribute &attribute = config->attributes[i];
    if (attribute.id == IGNORE) continue;
    if (attribute.id != PROGRAMMATIC_STREAM_SERIALIZATION) return NOT_SUPPORTED;
    shape.early = attribute.value.number != 0;
  }
  Stream *stream = stream_of(config->stream);
  if (shape.early && settings().capability < 90)
    return fault(NOT_SUPPORTED, "an early launch on a device that has none");
  if (shape.early && stream && stream->capture && settings().driver < EDGES_OF_KERNELS) {
    stream->capture_broken = true;
    return STREAM_CAPTURE_UNSUPPORTED;
  }
  return launch(static_cast<Function *>(function), shape, stream, arguments);
}
}

} // namespace twin
