// An emulated NVRTC for tests without it. It compiles nothing: from the options and the text it
// makes an image that names architecture, head size and kernels for the emulated driver.
#include <cstring>
#include <regex>
#include <string>

#include <cstdlib>

namespace {

enum Result {
  SUCCESS = 0,
  INVALID_INPUT = 3,
  INVALID_PROGRAM = 4,
  INVALID_OPTION = 5,
  COMPILATION = 6,
};

struct Program {
  std::string text, log, image;
};

constexpr const char *ARCHITECTURES[] = {"sm_75", "sm_80", "sm_86", "sm_89",  "sm_90",
                                         "sm_90a", "sm_100", "sm_103", "sm_120"};

std::string without_comments(const std::string &text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i++) {
    if (text.compare(i, 2, "//") == 0) {
      while (i < text.size() && text[i] != '\n') i++;
      out += '\n';
    } else if (text.compare(i, 2, "/*") == 0) {
      i = std::min(text.find("*/", i + 2), text.size() - 2) + 1;
      out += ' ';
    } else {
      out += text[i];
    }
  }
  return out;
}

bool known_architecture(const std::string &name) {
  for (const char *one : ARCHITECTURES)
    if (name == one) return true;
  return false;
}

Result read_options(Program *program, int count, const char *const *options,
                    std::string *architecture, std::string *head_dim) {
  for (int i = 0; i < count; i++) {
    std::string option = options[i];
    size_t equals = option.find('=');
    std::string name = option.substr(0, equals);
    std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
    if (name == "--gpu-architecture" || name == "-arch")
      *architecture = value;
    else if (name == "-DHEAD_DIM")
      *head_dim = value;
    else if (name != "--std" && name != "-std" && name.rfind("-D", 0) != 0 &&
             name != "-default-device" && name != "-lineinfo") {
      program->log = "nvrtc: error: invalid value for --option: " + option;
      return INVALID_OPTION;
    }
  }
  if (known_architecture(*architecture)) return SUCCESS;
  program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch): " + *architecture;
  return INVALID_OPTION;
}

} // namespace

extern "C" {
#define API __attribute__((visibility("default"))) int

API nvrtcVersion(int *major, int *minor) {
  *major = MAJOR, *minor = 0;
  return SUCCESS;
}
__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result) {
  switch (result) {
  case SUCCESS: return "NVRTC_SUCCESS";
  case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
  case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
  case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
  case COMPILATION: return "NVRTC_ERROR_COMPILATION";
  default: return "NVRTC_ERROR unknown";
  }
}
API nvrtcCreateProgram(void **program, const char *text, const char *, int headers,
                       const char *const *, const char *const *) {
  if (!program || !text || headers) return INVALID_INPUT;
  *program = new Program{text, "", ""};
  return SUCCESS;
}
API nvrtcDestroyProgram(void **program) {
  if (!program || !*program) return INVALID_PROGRAM;
  delete static_cast<Program *>(*program);
  *program = nullptr;
  return SUCCESS;
}
API nvrtcCompileProgram(void *handle, int count, const char *const *options) {
  auto program = static_cast<Program *>(handle);
  if (!program) return INVALID_PROGRAM;
  std::string architecture, head_dim = "0";
  Result result = read_options(program, count, options, &architecture, &head_dim);
  if (result) return result;
  std::string text = without_comments(program->text);
  bool includes = std::regex_search(text, std::regex("(^|\n) *# *include"));
  if (getenv("ROLLTAPE_EMULATED_FAIL_COMPILE") || includes) {
    program->log = includes ? "error: there are no headers" : "error: told to fail";
    return COMPILATION;
  }
  std::string digits = std::regex_replace(architecture, std::regex("[^0-9]"), "");
  program->image = "ROLLTAPE-EMULATED\narchitecture " + digits + "\nhead_dim " + head_dim + "\n";
  std::regex kernel(
      "__global__\\s+(?:void\\s+)?(?:__launch_bounds__\\s*\\([^)]*\\)\\s*)?(?:void\\s+)?(\\w+)\\s*"
      "\\(");
  for (std::sregex_iterator at(text.begin(), text.end(), kernel), end; at != end; ++at)
    program->image += "kernel " + (*at)[1].str() + "\n";
  program->image += '\0';
  return SUCCESS;
}
API nvrtcGetCUBINSize(void *handle, size_t *size) {
  if (!handle || !size) return INVALID_INPUT;
  *size = static_cast<Program *>(handle)->image.size();
  return *size ? SUCCESS : INVALID_PROGRAM;
}
API nvrtcGetCUBIN(void *handle, char *bytes) {
  if (!handle || !bytes) return INVALID_INPUT;
  const std::string &image = static_cast<Program *>(handle)->image;
  memcpy(bytes, image.data(), image.size());
  return SUCCESS;
}
API nvrtcGetProgramLogSize(void *handle, size_t *size) {
  if (!handle || !size) return INVALID_INPUT;
  *size = static_cast<Program *>(handle)->log.size() + 1;
  return SUCCESS;
}
API nvrtcGetProgramLog(void *handle, char *text) {
  if (!handle || !text) return INVALID_INPUT;
  const std::string &log = static_cast<Program *>(handle)->log;
  memcpy(text, log.c_str(), log.size() + 1);
  return SUCCESS;
}
API nvrtcGetNumSupportedArchs(int *count) {
  *count = sizeof ARCHITECTURES / sizeof *ARCHITECTURES;
  return SUCCESS;
}
}
