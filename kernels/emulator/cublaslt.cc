// An emulated cuBLASLt: products of bf16 or f32 matrices into bf16 or f32, summed in f32, on a
// stream of the emulated driver.
//
// As in the real one, the order of sums may depend on the number of columns, so it does not give
// the same bits in every batch. An algorithm is valid only for the shape for which it was found,
// apart from the columns, and needs the workspace that it reported.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
int rolltape_emulated_enqueue(void *stream, int (*function)(void *), const void *data, size_t bytes);
int rolltape_emulated_live(uint64_t address, size_t bytes);
int rolltape_emulated_fault(const char *text);
}

namespace {

enum Status { OK = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum Type { F32 = 0, BF16 = 14 };
constexpr int COMPUTE_32F = 68;

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t leading;
};
struct Description {
  int compute, scale, trans_a = 0, trans_b = 0, epilogue = 1, bias_type = -1;
  const void *bias = nullptr;
};
struct Preference {
  uint64_t workspace = 0;
};
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Heuristic) == 96, "as cublasLt.h has it");

constexpr uint64_t MARK = 0x726f6c6c74617065;

size_t size_of(int type) { return type == F32 ? 4 : 2; }

float load(const void *base, int type, size_t at) {
  if (type == F32) return static_cast<const float *>(base)[at];
  uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(base)[at]) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

void store(void *base, int type, size_t at, float value) {
  if (type == F32) {
    static_cast<float *>(base)[at] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bool none = (bits & 0x7fffffff) > 0x7f800000;
  bits = none ? 0x7fff0000 : bits + 0x7fff + (bits >> 16 & 1);
  static_cast<uint16_t *>(base)[at] = static_cast<uint16_t>(bits >> 16);
}

struct Product {
  Description description;
  Layout a, b, c, d;
  const void *at_a, *at_b, *at_c;
  void *at_d;
  float alpha, beta;
  uint64_t parts;  // the sum is split in so many
};

// Rows and columns of a matrix in the product, after a transposition.
uint64_t rows(const Layout &layout, int transposed) {
  return transposed ? layout.columns : layout.rows;
}
uint64_t columns(const Layout &layout, int transposed) {
  return transposed ? layout.rows : layout.columns;
}

bool lives(const void *base, const Layout &layout) {
  uint64_t last = (layout.columns - 1) * static_cast<uint64_t>(layout.leading) + layout.rows;
  return rolltape_emulated_live(reinterpret_cast<uint64_t>(base), last * size_of(layout.type));
}

// The operand as rows of `length` numbers that are multiplied with each other.
std::vector<float> lines(const void *base, const Layout &layout, bool by_columns) {
  uint64_t count = by_columns ? layout.columns : layout.rows;
  uint64_t length = by_columns ? layout.rows : layout.columns;
  std::vector<float> out(count * length);
  for (uint64_t line = 0; line < count; line++)
    for (uint64_t i = 0; i < length; i++) {
      uint64_t row = by_columns ? i : line, column = by_columns ? line : i;
      out[line * length + i] =
          load(base, layout.type, column * static_cast<uint64_t>(layout.leading) + row);
    }
  return out;
}

float dot(const float *a, const float *b, uint64_t length, uint64_t parts) {
  float total = 0;
  uint64_t part = (length + parts - 1) / parts;
  for (uint64_t begin = 0; begin < length; begin += part) {
    float sums[8] = {};
    for (uint64_t i = begin; i < length && i < begin + part; i++) sums[i % 8] += a[i] * b[i];
    for (float sum : sums) total += sum;
  }
  return total;
}

int multiply(void *data) {
  Product product;
  memcpy(&product, data, sizeof product);
  const Description &how = product.description;
  const Layout &d = product.d;
  bool bias = how.epilogue == 4;
  int bias_type = how.bias_type >= 0 ? how.bias_type : d.type;
  bool all = lives(product.at_a, product.a) && lives(product.at_b, product.b) &&
             lives(product.at_d, d) && (product.beta == 0 || lives(product.at_c, product.c)) &&
             (!bias || lives(how.bias, {bias_type, d.rows, 1, static_cast<int64_t>(d.rows)}));
  if (!all) return rolltape_emulated_fault("cublasLtMatmul: memory that is not there");
  // A line of `a` for every row of D, a line of `b` for every column.
  auto a = lines(product.at_a, product.a, how.trans_a);
  auto b = lines(product.at_b, product.b, !how.trans_b);
  uint64_t length = columns(product.a, how.trans_a);
  for (uint64_t column = 0; column < d.columns; column++)
    for (uint64_t row = 0; row < d.rows; row++) {
      float sum = dot(&a[row * length], &b[column * length], length, product.parts);
      float value = product.alpha * sum;
      uint64_t at_c = column * static_cast<uint64_t>(product.c.leading) + row;
      if (product.beta != 0)
        value += product.beta * load(product.at_c, product.c.type, at_c);
      if (bias) value += load(how.bias, bias_type, row);
      store(product.at_d, d.type, column * static_cast<uint64_t>(d.leading) + row, value);
    }
  return 0;
}

bool fits(const Description &how, const Layout &a, const Layout &b, const Layout &d) {
  return columns(a, how.trans_a) == rows(b, how.trans_b) && d.rows == rows(a, how.trans_a) &&
         d.columns == columns(b, how.trans_b);
}

bool supported(const Description &how, const Layout &a, const Layout &b, const Layout &c,
               const Layout &d) {
  auto known = [](int type) { return type == F32 || type == BF16; };
  bool types = known(a.type) && a.type == b.type && c.type == d.type && known(d.type) &&
               (a.type == BF16 || d.type == F32);
  // Tensor cores load 16 bytes at a time.
  bool aligned = true;
  for (const Layout *layout : {&a, &b, &d})
    aligned &= static_cast<uint64_t>(layout->leading) * size_of(layout->type) % 16 == 0;
  return types && aligned && how.compute == COMPUTE_32F && how.scale == F32 &&
         (how.epilogue == 1 || how.epilogue == 4);
}

uint64_t parts_for(uint64_t columns) {
  return columns <= 1 ? 4 : columns <= 16 ? 2 : columns <= 64 ? 3 : 1;
}

} // namespace

extern "C" {
#define API __attribute__((visibility("default"))) int

API cublasLtCreate(void **handle) {
  *handle = new char;
  return OK;
}
API cublasLtDestroy(void *handle) {
  delete static_cast<char *>(handle);
  return OK;
}
__attribute__((visibility("default"))) size_t cublasLtGetVersion() { return MAJOR * 10000; }

API cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns,
                               int64_t leading) {
  if (!layout || rows == 0 || columns == 0 || leading < static_cast<int64_t>(rows))
    return INVALID_VALUE;
  *layout = new Layout{type, rows, columns, leading};
  return OK;
}
API cublasLtMatrixLayoutDestroy(Layout *layout) {
  delete layout;
  return OK;
}
API cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value,
                                     size_t bytes) {
  if (attribute == 2 && bytes == 8) return memcpy(&layout->rows, value, 8), OK;
  if (attribute == 3 && bytes == 8) return memcpy(&layout->columns, value, 8), OK;
  if (attribute == 4 && bytes == 8) return memcpy(&layout->leading, value, 8), OK;
  return NOT_SUPPORTED;
}

API cublasLtMatmulDescCreate(Description **description, int compute, int scale) {
  if (!description) return INVALID_VALUE;
  *description = new Description{compute, scale};
  return OK;
}
API cublasLtMatmulDescDestroy(Description *description) {
  delete description;
  return OK;
}
API cublasLtMatmulDescSetAttribute(Description *how, int attribute, const void *value,
                                   size_t bytes) {
  if (!how || !value) return INVALID_VALUE;
  auto set = [&](auto &field) {
    if (bytes != sizeof field) return INVALID_VALUE;
    memcpy(&field, value, bytes);
    return OK;
  };
  switch (attribute) {
  case 3: return set(how->trans_a);
  case 4: return set(how->trans_b);
  case 7: return set(how->epilogue);
  case 8: return set(how->bias);
  case 26: return set(how->bias_type);
  default: return NOT_SUPPORTED;
  }
}

API cublasLtMatmulPreferenceCreate(Preference **preference) {
  if (!preference) return INVALID_VALUE;
  *preference = new Preference;
  return OK;
}
API cublasLtMatmulPreferenceDestroy(Preference *preference) {
  delete preference;
  return OK;
}
// Preferences (reduction schemes, alignment) are ignored.
API cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value,
                                         size_t bytes) {
  if (!preference || !value) return INVALID_VALUE;
  if (attribute == 1 && bytes == 8) memcpy(&preference->workspace, value, 8);
  return OK;
}

API cublasLtMatmulAlgoGetHeuristic(void *handle, const Description *how, const Layout *a,
                                   const Layout *b, const Layout *c, const Layout *d,
                                   const Preference *preference, int wanted, Heuristic *found,
                                   int *count) {
  if (!handle || !how || !a || !b || !c || !d || !found || !count || wanted < 1)
    return INVALID_VALUE;
  *count = 0;
  if (!fits(*how, *a, *b, *d)) return INVALID_VALUE;
  if (!supported(*how, *a, *b, *c, *d)) return NOT_SUPPORTED;
  // The usual sum first, then those of other numbers of parts.
  uint64_t usual = parts_for(d->columns);
  for (uint64_t other = 0; other <= 4 && *count < wanted; other++) {
    uint64_t parts = other == 0 ? usual : other;
    if (other == usual) continue;
    size_t workspace = parts > 1 ? d->rows * d->columns * 4 : 0;
    if (preference && workspace > preference->workspace) parts = 1, workspace = 0;
    Heuristic &one = found[(*count)++];
    memset(&one, 0, sizeof one);
    one.algorithm = {{MARK, d->rows, columns(*a, how->trans_a), static_cast<uint64_t>(a->type),
                      static_cast<uint64_t>(d->type), parts, workspace, 0}};
    one.workspace = workspace;
    one.waves = 1;
  }
  return OK;
}

API cublasLtMatmul(void *handle, const Description *how, const float *alpha, const void *at_a,
                   const Layout *a, const void *at_b, const Layout *b, const float *beta,
                   const void *at_c, const Layout *c, void *at_d, const Layout *d,
                   const Algorithm *algorithm, void *workspace, size_t workspace_bytes,
                   void *stream) {
  if (!handle || !how || !alpha || !beta || !a || !b || !c || !d) return INVALID_VALUE;
  if (!fits(*how, *a, *b, *d)) return INVALID_VALUE;
  if (!supported(*how, *a, *b, *c, *d)) return NOT_SUPPORTED;
  for (const void *pointer : {at_a, at_b, static_cast<const void *>(at_d)})
    if (reinterpret_cast<uint64_t>(pointer) % 16) return NOT_SUPPORTED;
  uint64_t parts = 1;
  if (algorithm) {
    const uint64_t *data = algorithm->data;
    bool known = data[0] == MARK && data[1] == d->rows && data[2] == columns(*a, how->trans_a) &&
                 data[3] == static_cast<uint64_t>(a->type) &&
                 data[4] == static_cast<uint64_t>(d->type);
    if (!known) return NOT_SUPPORTED;
    parts = data[5];
    // More columns need more workspace than the algorithm was found with.
    uint64_t needed = parts > 1 ? d->rows * d->columns * 4 : 0;
    if (needed > workspace_bytes) return INVALID_VALUE;
    if (needed && !rolltape_emulated_live(reinterpret_cast<uint64_t>(workspace), needed))
      return INVALID_VALUE;
  }
  Product product{*how, *a, *b, *c, *d, at_a, at_b, at_c, at_d, *alpha, *beta, parts};
  int result = rolltape_emulated_enqueue(stream, multiply, &product, sizeof product);
  return result ? EXECUTION_FAILED : OK;
}
}
