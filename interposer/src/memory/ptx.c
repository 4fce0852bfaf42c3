// SPDX-License-Identifier: Apache-2.0

// This file computes the sizes of the variables in a PTX text:
//   [.visible] .global|.const [.attribute(…)] [.align N] [.v2|.v4|.v8] .TYPE name [ '[' N ']' … ] [= …] {, …} ;

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "base/number.h"
#include "ptx.h"

struct vg_text {
	const char *at;
	const char *end;
};

static bool vg_is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

// vg_skip_comment skips a comment, and returns false if the text does not begin with a comment.
static bool vg_skip_comment(struct vg_text *text)
{
	const char *end;

	if (text->end - text->at < 2 || text->at[0] != '/')
		return false;
	if (text->at[1] == '/') {
		end = memchr(text->at, '\n', (size_t)(text->end - text->at));
		text->at = end ? end : text->end;
		return true;
	}
	if (text->at[1] != '*')
		return false;
	for (text->at += 2; text->end - text->at >= 2; text->at++)
		if (text->at[0] == '*' && text->at[1] == '/')
			break;
	text->at = text->end - text->at >= 2 ? text->at + 2 : text->end;
	return true;
}

static void vg_skip_space(struct vg_text *text)
{
	while (text->at < text->end && (isspace((unsigned char)*text->at) || vg_skip_comment(text)))
		if (text->at < text->end && isspace((unsigned char)*text->at))
			text->at++;
}

// vg_next_is reports whether the next character is `c`.
static bool vg_next_is(struct vg_text *text, char c)
{
	vg_skip_space(text);
	return text->at < text->end && *text->at == c;
}

// vg_word returns the next word. A directive such as .global ends before the next directive, and an
// instruction such as ld.global.u32 is one word.
static struct vg_text vg_word(struct vg_text *text)
{
	struct vg_text word;

	vg_skip_space(text);
	word.at = text->at;
	while (text->at < text->end && vg_is_word(*text->at) &&
	       (text->at == word.at || *word.at != '.' || *text->at != '.'))
		text->at++;
	word.end = text->at;
	return word;
}

static bool vg_word_is(const struct vg_text *word, const char *expected)
{
	size_t length = (size_t)(word->end - word->at);

	return length == strlen(expected) && memcmp(word->at, expected, length) == 0;
}

// vg_number parses a decimal or hexadecimal number. An octal number counts as decimal, which is
// never less.
static uint64_t vg_number(struct vg_text *text)
{
	uint64_t base = 10;
	uint64_t value = 0;

	vg_skip_space(text);
	if (text->end - text->at >= 2 && text->at[0] == '0' && (text->at[1] | 0x20) == 'x') {
		base = 16;
		text->at += 2;
	}
	while (text->at < text->end && isxdigit((unsigned char)*text->at)) {
		int c = *text->at | 0x20;
		uint64_t digit = c >= 'a' ? (uint64_t)(c - 'a') + 10 : (uint64_t)(c & 0xf);

		if (value > (UINT64_MAX - digit) / base)
			return UINT64_MAX;
		value = value * base + digit;
		text->at++;
	}
	return value;
}

// vg_type_bytes returns the size of a type such as .f32, .b8 or .f16x2, and 0 for other words.
static uint64_t vg_type_bytes(const struct vg_text *word)
{
	struct vg_text digits = {word->at + 2, word->end};
	uint64_t bits;

	if (word->end - word->at < 3 || word->at[0] != '.' || !strchr("bsuf", word->at[1]))
		return 0;
	bits = vg_number(&digits);
	if (!vg_next_is(&digits, 'x'))
		return bits / 8;
	digits.at++;
	return bits * vg_number(&digits) / 8;
}

// vg_dimensions multiplies the numbers in the brackets after a name. vg_dimensions returns UINT64_MAX
// for an expression, because vg_dimensions does not compute expressions. vg_dimensions sets
// *open_ended for empty brackets, whose size follows from the initialiser. In an initialiser, each
// element takes at least two characters.
static uint64_t vg_dimensions(struct vg_text *text, bool *open_ended)
{
	uint64_t count = 1;

	while (vg_next_is(text, '[')) {
		uint64_t size;

		text->at++;
		size = vg_number(text);
		if (vg_next_is(text, 'U'))
			text->at++;
		if (text->at < text->end && !vg_next_is(text, ']'))
			return UINT64_MAX;
		if (text->at < text->end)
			text->at++;
		if (size == 0)
			*open_ended = true;
		else
			count = count > UINT64_MAX / size ? UINT64_MAX : count * size;
	}
	return count;
}

static int vg_nesting(char c)
{
	return (c == '{' || c == '(') - (c == '}' || c == ')');
}

// vg_skip_brackets skips what follows in round brackets.
static void vg_skip_brackets(struct vg_text *text)
{
	int depth = 0;

	while (vg_next_is(text, '(') || (depth > 0 && text->at < text->end)) {
		depth += vg_nesting(*text->at);
		text->at++;
	}
}

// vg_skip_initialiser also stops at the end of a list of parameters, where .global describes a
// pointer.
static uint64_t vg_skip_initialiser(struct vg_text *text)
{
	const char *start = text->at;
	int depth = 0;

	while (text->at < text->end && (depth > 0 || (*text->at != ',' && *text->at != ';'))) {
		if (vg_skip_comment(text))
			continue;
		depth += vg_nesting(*text->at);
		if (depth < 0)
			break;
		text->at++;
	}
	return (uint64_t)(text->at - start) / 2 + 1;
}

// vg_declaration parses a declaration after .global or .const up to the semicolon, and returns the
// size of the declared variables.
static uint64_t vg_declaration(struct vg_text *text)
{
	uint64_t element = 0;
	uint64_t vector = 1;
	uint64_t align = 1;
	uint64_t sum = 0;
	struct vg_text word = vg_word(text);

	for (; word.at < word.end && word.at[0] == '.'; word = vg_word(text)) {
		uint64_t bytes = vg_type_bytes(&word);

		if (bytes)
			element = bytes;
		else if (vg_word_is(&word, ".align"))
			align = vg_number(text);
		else if (vg_word_is(&word, ".attribute"))
			vg_skip_brackets(text);
		else if (vg_word_is(&word, ".v2"))
			vector = 2;
		else if (vg_word_is(&word, ".v4"))
			vector = 4;
		else if (vg_word_is(&word, ".v8"))
			vector = 8;
	}
	while (text->at <= text->end && word.at < word.end) {
		bool open_ended = false;
		uint64_t count = vg_dimensions(text, &open_ended);
		uint64_t initialised = vg_skip_initialiser(text);
		uint64_t unit = (element ? element : 8) * vector;

		if (open_ended)
			count = vg_add_saturating(count, initialised);
		count = count > UINT64_MAX / unit ? UINT64_MAX : count * unit;
		sum = vg_add_saturating(sum, vg_round_up(count, align ? align : 1));
		if (text->at >= text->end || *text->at != ',')
			return sum;
		text->at++;
		word = vg_word(text);
	}
	return sum;
}

uint64_t vg_ptx_bytes(const char *string, size_t length)
{
	struct vg_text text = {string, string + length};
	bool strings = false;
	uint64_t sum = 0;

	while (text.at < text.end) {
		struct vg_text declaration;
		struct vg_text word;

		// A string may contain the start of a comment. Therefore comments behind the first string
		// count as text.
		if (!strings && vg_skip_comment(&text))
			continue;
		if (!vg_is_word(*text.at)) {
			strings |= *text.at == '"';
			text.at++;
			continue;
		}
		word = vg_word(&text);
		declaration = text;
		if (vg_word_is(&word, ".global") || vg_word_is(&word, ".const"))
			sum = vg_add_saturating(sum, vg_declaration(&declaration));
	}
	return sum;
}
