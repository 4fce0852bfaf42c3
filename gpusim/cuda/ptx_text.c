// SPDX-License-Identifier: Apache-2.0
#include "ptx_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool ptx_word_char(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

static bool skip_comment(struct text *t)
{
	const char *stop;

	if (t->end - t->at < 2 || t->at[0] != '/')
		return false;
	if (t->at[1] == '/') {
		stop = memchr(t->at, '\n', (size_t)(t->end - t->at));
		t->at = stop ? stop : t->end;
		return true;
	}
	if (t->at[1] == '*') {
		stop = memmem(t->at + 2, (size_t)(t->end - t->at - 2), "*/", 2);
		t->at = stop ? stop + 2 : t->end;
		return true;
	}
	return false;
}

static void skip_space(struct text *t)
{
	while (t->at < t->end && (isspace((unsigned char)*t->at) || skip_comment(t)))
		if (t->at < t->end && isspace((unsigned char)*t->at))
			t->at++;
}

struct text ptx_next_word(struct text *t)
{
	struct text word;

	skip_space(t);
	word.at = word.end = t->at;
	if (t->at == t->end)
		return word;
	if (!ptx_word_char(*t->at)) {
		word.end = ++t->at;
		return word;
	}
	while (t->at < t->end && ptx_word_char(*t->at))
		t->at++;
	word.end = t->at;
	return word;
}

struct text ptx_peek_word(const struct text *t)
{
	struct text ahead = *t;

	return ptx_next_word(&ahead);
}

bool ptx_is(struct text word, const char *expected)
{
	size_t length = strlen(expected);

	return (size_t)(word.end - word.at) == length && memcmp(word.at, expected, length) == 0;
}

bool ptx_is_end(struct text word)
{
	return word.at == word.end;
}

uint64_t ptx_number(struct text word)
{
	char digits[24] = "";
	size_t length = (size_t)(word.end - word.at);

	memcpy(digits, word.at, length < sizeof(digits) ? length : sizeof(digits) - 1);
	return strtoull(digits, NULL, 0);
}

char *ptx_copy(struct text word)
{
	return strndup(word.at, (size_t)(word.end - word.at));
}

bool ptx_contains(struct text word, const char *part)
{
	return memmem(word.at, (size_t)(word.end - word.at), part, strlen(part)) != NULL;
}
