// SPDX-License-Identifier: Apache-2.0
/*
 * Reads of PTX text what the simulator needs: entries, their parameters and
 * the module's global variables. A kernel whose body reads %globaltimer and
 * whose first parameter is a .u64 with "ns" in its name runs for that many
 * nanoseconds. If the next three are .u64 with "mine", "theirs" and "turn" in
 * their names, it then writes the turn to the first and waits for it at the
 * second.
 */
#include "sim.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct text {
	const char *at, *end;
};

/* ---- words ---- */

static bool word_char(char c)
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

/* The next word or single character, length 0 at the end. */
static struct text next_word(struct text *t)
{
	struct text word;

	skip_space(t);
	word.at = word.end = t->at;
	if (t->at == t->end)
		return word;
	if (!word_char(*t->at)) {
		word.end = ++t->at;
		return word;
	}
	while (t->at < t->end && word_char(*t->at))
		t->at++;
	word.end = t->at;
	return word;
}

static bool is(struct text word, const char *expected)
{
	size_t length = strlen(expected);

	return (size_t)(word.end - word.at) == length && memcmp(word.at, expected, length) == 0;
}

static bool is_end(struct text word)
{
	return word.at == word.end;
}

static uint64_t number(struct text word)
{
	char digits[24] = "";
	size_t length = (size_t)(word.end - word.at);

	memcpy(digits, word.at, length < sizeof(digits) ? length : sizeof(digits) - 1);
	return strtoull(digits, NULL, 0);
}

static char *copy(struct text word)
{
	return strndup(word.at, (size_t)(word.end - word.at));
}

static bool contains(struct text word, const char *part)
{
	return memmem(word.at, (size_t)(word.end - word.at), part, strlen(part)) != NULL;
}

/* Bytes of a type such as .u64 or .b8, 0 if the word is none. */
static uint32_t type_size(struct text word)
{
	static const struct {
		const char *name;
		uint32_t size;
	} types[] = {
		{".u64", 8}, {".s64", 8}, {".b64", 8}, {".f64", 8}, {".u32", 4}, {".s32", 4},
		{".b32", 4}, {".f32", 4}, {".u16", 2}, {".s16", 2}, {".b16", 2}, {".f16", 2},
		{".u8", 1},  {".s8", 1},  {".b8", 1},  {".pred", 1}, {".b128", 16},
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (is(word, types[i].name))
			return types[i].size;
	return 0;
}

/* ---- declarations ---- */

struct declaration {
	struct text name;
	uint64_t size;
	uint32_t alignment;
	bool is_u64;
};

/*
 * ".align 8 .b8 name[16]" up to a comma, semicolon or bracket, which stays.
 * An initialiser is passed over.
 */
static void read_declaration(struct text *t, struct declaration *d)
{
	uint64_t count = 1;
	uint32_t element = 1;

	memset(d, 0, sizeof(*d));
	for (;;) {
		struct text before = *t;
		struct text word = next_word(t);

		if (is_end(word) || is(word, ",") || is(word, ";") || is(word, ")") || is(word, "{")) {
			*t = before;
			break;
		}
		if (is(word, ".align")) {
			d->alignment = (uint32_t)number(next_word(t));
		} else if (type_size(word)) {
			element = type_size(word);
			d->is_u64 = is(word, ".u64") || is(word, ".b64");
		} else if (is(word, "[")) {
			struct text inner = next_word(t);

			count *= is(inner, "]") ? 1 : number(inner);
			d->is_u64 = false;
		} else if (is(word, "=")) {
			while (t->at < t->end && *t->at != ';')
				t->at++;
		} else if (isalpha((unsigned char)*word.at) || *word.at == '_' || *word.at == '$' ||
			   *word.at == '%') {
			d->name = word;
		}
	}
	d->size = element * count;
	if (!d->alignment)
		d->alignment = element;
}

static CUresult add_param(struct ptx_entry *entry, const struct declaration *d)
{
	struct ptx_param *grown;

	grown = realloc(entry->params, (entry->param_count + 1) * sizeof(*grown));
	if (!grown)
		return CUDA_ERROR_OUT_OF_MEMORY;
	entry->params = grown;
	entry->param_bytes = (uint32_t)round_up(entry->param_bytes, d->alignment ? d->alignment : 1);
	grown[entry->param_count++] = (struct ptx_param){entry->param_bytes, (uint32_t)d->size};
	entry->param_bytes += (uint32_t)d->size;
	return CUDA_SUCCESS;
}

/*
 * "(.param .u64 a, .param .u32 b)"; says how many of the first ones are those
 * that the simulator knows, in their order.
 */
static CUresult read_params(struct text *t, struct ptx_entry *entry, uint32_t *known)
{
	static const char *const names[] = {"ns", "mine", "theirs", "turn"};

	for (;;) {
		struct text word = next_word(t);
		struct declaration d;
		CUresult err;

		if (is_end(word))
			return CUDA_ERROR_INVALID_PTX;
		if (is(word, ")"))
			return CUDA_SUCCESS;
		if (!is(word, ".param"))
			continue;
		read_declaration(t, &d);
		if (is_end(d.name))
			return CUDA_ERROR_INVALID_PTX;
		if (entry->param_count == *known && *known < 4 && d.is_u64 && contains(d.name, names[*known]))
			++*known;
		err = add_param(entry, &d);
		if (err)
			return err;
	}
}

/* The text between braces; t stands after the first one. */
static CUresult skip_body(struct text *t, struct text *body)
{
	int depth = 1;

	body->at = t->at;
	while (depth > 0) {
		struct text word = next_word(t);

		if (is_end(word))
			return CUDA_ERROR_INVALID_PTX;
		if (is(word, "{"))
			depth++;
		if (is(word, "}"))
			depth--;
	}
	body->end = t->at;
	return CUDA_SUCCESS;
}

static struct ptx_entry *add_entry(struct ptx *ptx, struct text name)
{
	struct ptx_entry *grown = realloc(ptx->entries, (ptx->entry_count + 1) * sizeof(*grown));

	if (!grown)
		return NULL;
	ptx->entries = grown;
	grown[ptx->entry_count] = (struct ptx_entry){.name = copy(name)};
	return grown[ptx->entry_count].name ? &grown[ptx->entry_count++] : NULL;
}

static CUresult read_entry(struct text *t, struct ptx *ptx)
{
	struct text name = next_word(t), body, word;
	struct ptx_entry *entry;
	uint32_t known = 0;
	CUresult err = CUDA_SUCCESS;

	if (is_end(name) || !word_char(*name.at))
		return CUDA_ERROR_INVALID_PTX;
	entry = add_entry(ptx, name);
	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* Directives such as .maxntid may stand between parameters and body. */
	for (word = next_word(t); !is(word, "{") && !is(word, ";"); word = next_word(t)) {
		if (is_end(word))
			return CUDA_ERROR_INVALID_PTX;
		if (is(word, "("))
			err = read_params(t, entry, &known);
		if (err)
			return err;
	}
	if (is(word, ";")) /* a declaration only */
		return CUDA_SUCCESS;
	err = skip_body(t, &body);
	entry->spins = !err && known > 0 && contains(body, "%globaltimer");
	entry->meets = entry->spins && known == 4;
	return err;
}

static CUresult read_global(struct text *t, struct ptx *ptx)
{
	struct ptx_global *grown;
	struct declaration d;

	read_declaration(t, &d);
	if (is_end(d.name))
		return CUDA_ERROR_INVALID_PTX;
	grown = realloc(ptx->globals, (ptx->global_count + 1) * sizeof(*grown));
	if (!grown)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ptx->globals = grown;
	grown[ptx->global_count] = (struct ptx_global){copy(d.name), d.size};
	if (!grown[ptx->global_count].name)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ptx->global_count++;
	return CUDA_SUCCESS;
}

/* A function body may hold anything; only what stands outside matters. */
static CUresult read_module(struct text *t, struct ptx *ptx)
{
	bool versioned = false;

	for (;;) {
		struct text word = next_word(t), body;
		CUresult err = CUDA_SUCCESS;

		if (is_end(word))
			return versioned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
		if (is(word, ".version"))
			versioned = true;
		else if (is(word, ".entry"))
			err = read_entry(t, ptx);
		else if (is(word, ".global") || is(word, ".const"))
			err = read_global(t, ptx);
		else if (is(word, "{"))
			err = skip_body(t, &body);
		if (err)
			return err;
	}
}

CUresult ptx_parse(const char *text, struct ptx *ptx)
{
	struct text t = {text, text + strlen(text)};
	CUresult err;

	memset(ptx, 0, sizeof(*ptx));
	ptx->length = (uint64_t)(t.end - t.at);
	err = read_module(&t, ptx);
	if (err)
		ptx_free(ptx);
	return err;
}

void ptx_free(struct ptx *ptx)
{
	for (size_t i = 0; i < ptx->entry_count; i++) {
		free(ptx->entries[i].name);
		free(ptx->entries[i].params);
	}
	for (size_t i = 0; i < ptx->global_count; i++)
		free(ptx->globals[i].name);
	free(ptx->entries);
	free(ptx->globals);
	memset(ptx, 0, sizeof(*ptx));
}
