// Pages of bf16: a head of a page is PAGE rows of HEAD_DIM numbers, of keys or of values.

typedef bf16 PageUnit;
/// Units of a head of a page.
#define PAGE_HEAD (PAGE * HEAD_DIM)
