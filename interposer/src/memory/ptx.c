// SPDX-License-Identifier: Apache-2.0

// This file computes the sizes of the variables in a PTX text:
//   [.visible] .global|.const [.align N] [.v2|.v4] .TYPE name [ '[' N ']' … ] [= …] {, …} ;

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

static void vg_skip_space(struct vg_text *text)
{
	while (text->at < text->end && isspace((unsigned char)*text->at))
		text->at++;
}

static struct vg_text vg_word(struct vg_text *text)
{
	struct vg_text word;

	vg_skip_space(text);
	word.at = text->at;
	while (text->at < text->end && vg_is_word(*text->at))
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

// vg_type_bytes returns the size of a type such as .f32 or .b8, and 0 for other words.
static uint64_t vg_type_bytes(const struct vg_text *word)
{
	struct vg_text digits = {word->at + 2, word->end};

	if (word->end - word->at < 3 || word->at[0] != '.' || !strchr("bsuf", word->at[1]))
		return 0;
	return vg_number(&digits) / 8;
}

// vg_dimensions multiplies the numbers in the brackets after a name. vg_dimensions sets *open_ended
// for brackets without a number, whose size is that of the initialiser. In an initialiser, each
// element takes at least two characters.
static uint64_t vg_dimensions(struct vg_text *text, bool *open_ended)
{
	uint64_t count = 1;

	for (;;) {
		uint64_t size;

		vg_skip_space(text);
		if (text->at >= text->end || *text->at != '[')
			return count;
		text->at++;
		size = vg_number(text);
		if (size == 0)
			*open_ended = true;
		else
			count = count > UINT64_MAX / size ? UINT64_MAX : count * size;
		while (text->at < text->end && *text->at != ']')
			text->at++;
		if (text->at < text->end)
			text->at++;
	}
}

static uint64_t vg_skip_initialiser(struct vg_text *text)
{
	const char *start = text->at;
	int depth = 0;

	while (text->at < text->end && (depth > 0 || (*text->at != ',' && *text->at != ';'))) {
		depth += (*text->at == '{') - (*text->at == '}');
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
		else if (vg_word_is(&word, ".v2"))
			vector = 2;
		else if (vg_word_is(&word, ".v4"))
			vector = 4;
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

uint64_t vg_ptx_bytes(const char *string, size_t length)
{
	struct vg_text text = {string, string + length};
	uint64_t sum = 0;

	while (text.at < text.end) {
		struct vg_text word;

		if (vg_skip_comment(&text))
			continue;
		if (*text.at != '.') {
			text.at++;
			continue;
		}
		word = vg_word(&text);
		// Inside functions .global is only a part of an instruction's name, such as
		// ld.global.u32, and never a word by itself.
		if (vg_word_is(&word, ".global") || vg_word_is(&word, ".const"))
			sum = vg_add_saturating(sum, vg_declaration(&text));
	}
	return sum;
}
