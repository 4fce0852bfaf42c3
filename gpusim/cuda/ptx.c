// SPDX-License-Identifier: Apache-2.0
/*
 * This file reads from PTX text the entries with their parameters, the module's global variables,
 * and the names that modules share. A kernel whose body reads %globaltimer and whose first
 * parameter is a .u64 with "ns" in its name runs for that many nanoseconds. The next three
 * parameters may be .u64 with "mine", "theirs" and "turn" in their names. Then the kernel writes
 * the turn to the first address after its time, and waits for the turn at the second address.
 *
 * In linked text, each of the joined texts begins with .version.
 */
#include "ptx_text.h"
#include "sim.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

uint32_t ptx_type_size(struct text word)
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
		if (ptx_is(word, types[i].name))
			return types[i].size;
	return 0;
}

static uint32_t vector_size(struct text word)
{
	return ptx_is(word, ".v2") ? 2 : ptx_is(word, ".v4") ? 4 : ptx_is(word, ".v8") ? 8 : 0;
}

static bool is_name(struct text word)
{
	return isalpha((unsigned char)*word.at) || *word.at == '_' || *word.at == '$' ||
	       *word.at == '%';
}

/* ---- declarations ---- */

struct declaration {
	struct text name;
	uint64_t size;
	uint32_t scalar, vector;
	uint32_t alignment;
	bool is_u64;
	bool sized; /* false: an array without a size */
};

static bool ends_declaration(struct text word)
{
	return ptx_is_end(word) || ptx_is(word, ",") || ptx_is(word, ";") || ptx_is(word, ")") ||
	       ptx_is(word, "{") || ptx_is(word, "=");
}

/*
 * read_declaration reads ".align 8 .b8 name[16]" up to a comma, semicolon, bracket or equals sign,
 * which stays unread. read_declaration keeps the type in d for the next name.
 */
static void read_declaration(struct text *t, struct declaration *d)
{
	uint64_t count = 1;
	uint32_t element;

	d->name = (struct text){0};
	d->sized = true;
	while (!ends_declaration(ptx_peek_word(t))) {
		struct text word = ptx_next_word(t);

		if (ptx_is(word, ".align")) {
			d->alignment = (uint32_t)ptx_number(ptx_next_word(t));
		} else if (ptx_type_size(word)) {
			d->scalar = ptx_type_size(word);
			d->is_u64 = ptx_is(word, ".u64") || ptx_is(word, ".b64");
		} else if (vector_size(word)) {
			d->vector = vector_size(word);
		} else if (ptx_is(word, "[")) {
			struct text inner = ptx_next_word(t);

			d->sized = d->sized && !ptx_is(inner, "]");
			count *= ptx_is(inner, "]") ? 1 : ptx_number(inner);
			d->is_u64 = false;
		} else if (is_name(word)) {
			d->name = word;
		}
	}
	if (!d->scalar)
		d->scalar = 1;
	element = d->scalar * (d->vector ? d->vector : 1);
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
	entry->param_bytes = (uint32_t)round_up(entry->param_bytes, d->alignment);
	grown[entry->param_count++] = (struct ptx_param){entry->param_bytes, (uint32_t)d->size};
	entry->param_bytes += (uint32_t)d->size;
	return CUDA_SUCCESS;
}

/*
 * read_params reads "(.param .u64 a, .param .u32 b)" and counts how many of the first parameters
 * have the known names, in the known order.
 */
static CUresult read_params(struct text *t, struct ptx_entry *entry, uint32_t *known)
{
	static const char *const names[] = {"ns", "mine", "theirs", "turn"};

	for (;;) {
		struct text word = ptx_next_word(t);
		struct declaration d = {0};
		CUresult err;

		if (ptx_is_end(word))
			return CUDA_ERROR_INVALID_PTX;
		if (ptx_is(word, ")"))
			return CUDA_SUCCESS;
		if (!ptx_is(word, ".param"))
			continue;
		read_declaration(t, &d);
		if (ptx_is_end(d.name))
			return CUDA_ERROR_INVALID_PTX;
		if (entry->param_count == *known && *known < 4 && d.is_u64 &&
		    ptx_contains(d.name, names[*known]))
			++*known;
		err = add_param(entry, &d);
		if (err)
			return err;
	}
}

/* skip_body returns the text between braces. t is behind the first brace. */
static CUresult skip_body(struct text *t, struct ptx *ptx, struct text *body)
{
	int depth = 1;

	body->at = t->at;
	while (depth > 0) {
		struct text word = ptx_next_word(t);

		if (ptx_is_end(word))
			return CUDA_ERROR_INVALID_PTX;
		if (ptx_is(word, "{"))
			depth++;
		else if (ptx_is(word, "}"))
			depth--;
		else if (is_name(word) && *word.at != '%') /* not a register */
			ptx_symbol_use(ptx, word);
	}
	body->end = t->at;
	return CUDA_SUCCESS;
}

/*
 * add_entry returns the entry of this name, which an earlier declaration may have added.
 */
static struct ptx_entry *add_entry(struct ptx *ptx, struct text name)
{
	struct ptx_entry *grown;

	for (size_t i = 0; i < ptx->entry_count; i++) {
		if (!ptx_is(name, ptx->entries[i].name))
			continue;
		ptx->entries[i].param_count = ptx->entries[i].param_bytes = 0;
		return &ptx->entries[i];
	}
	grown = realloc(ptx->entries, (ptx->entry_count + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	ptx->entries = grown;
	grown[ptx->entry_count] = (struct ptx_entry){.name = ptx_copy(name)};
	return grown[ptx->entry_count].name ? &grown[ptx->entry_count++] : NULL;
}

static CUresult read_entry(struct text *t, struct ptx *ptx, enum ptx_linkage linkage)
{
	struct text name = ptx_next_word(t), body, word;
	struct ptx_entry *entry;
	uint32_t known = 0;
	CUresult err = CUDA_SUCCESS;

	if (ptx_is_end(name) || !ptx_word_char(*name.at))
		return CUDA_ERROR_INVALID_PTX;
	entry = add_entry(ptx, name);
	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* Directives such as .maxntid may occur between parameters and body. */
	for (word = ptx_next_word(t); !ptx_is(word, "{") && !ptx_is(word, ";"); word = ptx_next_word(t)) {
		if (ptx_is_end(word))
			return CUDA_ERROR_INVALID_PTX;
		if (ptx_is(word, "("))
			err = read_params(t, entry, &known);
		if (err)
			return err;
	}
	if (ptx_is(word, ";")) /* a declaration only */
		return ptx_symbol_add(ptx, name, linkage, false);
	err = skip_body(t, ptx, &body);
	entry->spins = !err && known > 0 && ptx_contains(body, "%globaltimer");
	entry->meets = entry->spins && known == 4;
	entry->traps = !err && ptx_contains(body, "trap;");
	return err ? err : ptx_symbol_add(ptx, name, linkage, true);
}

static bool skip_parameters(struct text *t)
{
	struct text word;

	do
		word = ptx_next_word(t);
	while (!ptx_is_end(word) && !ptx_is(word, ")"));
	return !ptx_is_end(word);
}

/*
 * read_function reads ".func (.param .u32 result) name (.param .u64 a)", with or without a body.
 */
static CUresult read_function(struct text *t, struct ptx *ptx, enum ptx_linkage linkage)
{
	struct text name = {0}, body;
	CUresult err;

	for (;;) {
		struct text word = ptx_next_word(t);

		if (ptx_is_end(word) || (ptx_is(word, "(") && !skip_parameters(t)))
			return CUDA_ERROR_INVALID_PTX;
		if (is_name(word))
			name = word;
		if (!ptx_is(word, "{") && !ptx_is(word, ";"))
			continue;
		if (ptx_is_end(name))
			return CUDA_ERROR_INVALID_PTX;
		err = ptx_symbol_add(ptx, name, linkage, ptx_is(word, "{"));
		return err || ptx_is(word, ";") ? err : skip_body(t, ptx, &body);
	}
}

/* ---- variables ---- */

/* is_there reports whether another definition has added the weak variable. */
static bool is_there(const struct ptx *ptx, struct text name, enum ptx_linkage linkage)
{
	for (size_t i = 0; linkage == PTX_WEAK && i < ptx->global_count; i++)
		if (ptx_is(name, ptx->globals[i].name))
			return true;
	return false;
}

static CUresult add_global(struct ptx *ptx, const struct declaration *d, struct ptx_data *data)
{
	struct ptx_global *grown = realloc(ptx->globals, (ptx->global_count + 1) * sizeof(*grown));

	if (!grown)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ptx->globals = grown;
	grown[ptx->global_count] = (struct ptx_global){
		.name = ptx_copy(d->name),
		.size = d->sized ? d->size : data->size,
		.alignment = d->alignment,
		.data = *data,
	};
	if (!grown[ptx->global_count].name)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*data = (struct ptx_data){0};
	ptx->global_count++;
	return CUDA_SUCCESS;
}

/* read_variable reads one name of a declaration. Shared memory belongs to no module. */
static CUresult read_variable(struct text *t, struct ptx *ptx, struct declaration *d,
			      enum ptx_linkage linkage, bool shared)
{
	struct ptx_data data = {0};
	bool external = linkage == PTX_EXTERN;
	CUresult err = CUDA_SUCCESS;

	read_declaration(t, d);
	if (ptx_is_end(d->name))
		return CUDA_ERROR_INVALID_PTX;
	if (ptx_is(ptx_peek_word(t), "=")) {
		(void)ptx_next_word(t);
		err = ptx_read_data(t, d->scalar, ptx, &data);
	}
	/* The launch allocates shared memory without a size. */
	if (!err && !(shared && external && !d->sized))
		err = ptx_symbol_add(ptx, d->name, linkage, !external);
	if (!err && !shared && !external && !is_there(ptx, d->name, linkage))
		err = add_global(ptx, d, &data);
	ptx_data_free(&data);
	return err;
}

static CUresult read_variables(struct text *t, struct ptx *ptx, enum ptx_linkage linkage, bool shared)
{
	struct declaration d = {0};
	CUresult err;

	do
		err = read_variable(t, ptx, &d, linkage, shared);
	while (!err && ptx_is(ptx_next_word(t), ","));
	return err;
}

uint64_t ptx_global_bytes(const struct ptx *ptx)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < ptx->global_count; i++) {
		uint32_t alignment = ptx->globals[i].alignment;

		bytes = round_up(bytes, alignment ? alignment : 1) + ptx->globals[i].size;
	}
	return bytes;
}

/* ---- modules ---- */

static bool is_linkage(struct text word, enum ptx_linkage *linkage)
{
	static const struct {
		const char *word;
		enum ptx_linkage linkage;
	} words[] = {
		{".visible", PTX_VISIBLE},
		{".extern", PTX_EXTERN},
		{".weak", PTX_WEAK},
		{".common", PTX_WEAK},
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (!ptx_is(word, words[i].word))
			continue;
		*linkage = words[i].linkage;
		return true;
	}
	return false;
}

static void begin_unit(struct ptx *ptx)
{
	ptx->unit_symbols = ptx->symbol_count;
	ptx->units++;
}

/* read_module skips function bodies, because only declarations outside of bodies matter. */
static CUresult read_module(struct text *t, struct ptx *ptx)
{
	enum ptx_linkage linkage = PTX_LOCAL;

	for (;;) {
		struct text word = ptx_next_word(t), body;
		CUresult err = CUDA_SUCCESS;

		if (ptx_is_end(word))
			return ptx->units ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
		if (is_linkage(word, &linkage))
			continue;
		if (ptx_is(word, ".version"))
			begin_unit(ptx);
		else if (ptx_is(word, ".entry"))
			err = read_entry(t, ptx, linkage);
		else if (ptx_is(word, ".func"))
			err = read_function(t, ptx, linkage);
		else if (ptx_is(word, ".global") || ptx_is(word, ".const") || ptx_is(word, ".shared"))
			err = read_variables(t, ptx, linkage, ptx_is(word, ".shared"));
		else if (ptx_is(word, "{"))
			err = skip_body(t, ptx, &body);
		if (err)
			return err;
		linkage = PTX_LOCAL;
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
	for (size_t i = 0; i < ptx->global_count; i++) {
		free(ptx->globals[i].name);
		ptx_data_free(&ptx->globals[i].data);
	}
	ptx_symbols_free(ptx);
	free(ptx->entries);
	free(ptx->globals);
	memset(ptx, 0, sizeof(*ptx));
}
