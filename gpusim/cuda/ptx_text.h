// SPDX-License-Identifier: Apache-2.0
/* This header declares the words of PTX text. */
#ifndef GPUSIM_PTX_TEXT_H
#define GPUSIM_PTX_TEXT_H

#include <stdbool.h>
#include <stdint.h>

/* text is a range of text, from `at` up to `end`. */
struct text {
	const char *at, *end;
};

/* ptx_word_char reports whether a word may contain the character. */
bool ptx_word_char(char c);
/* ptx_next_word takes the next word or single character. At the end of the text, the word has
 * length 0. */
struct text ptx_next_word(struct text *t);
/* ptx_peek_word returns the next word without taking it. */
struct text ptx_peek_word(const struct text *t);
bool ptx_is(struct text word, const char *expected);
bool ptx_is_end(struct text word);
uint64_t ptx_number(struct text word);
/* ptx_copy returns the word as a string, or NULL without memory. */
char *ptx_copy(struct text word);
bool ptx_contains(struct text word, const char *part);

#endif
