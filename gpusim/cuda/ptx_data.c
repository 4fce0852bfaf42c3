// SPDX-License-Identifier: Apache-2.0
/*
 * This file parses the initial content of variables: numbers, and addresses as in "{1, -2,
 * 0f3F800000, name, generic(name)+8}".
 */
#include "ptx_text.h"
#include "sim.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct value {
	uint64_t number;
	struct text name; /* of the variable whose address it is, or empty */
	bool negative;
};

/* number_of returns the bits of a number. 0f3F800000 and 0d3FF0000000000000 are the bits of
 * floating-point numbers. */
static uint64_t number_of(struct text word, uint32_t element)
{
	bool bits = word.end - word.at > 2 && word.at[0] == '0' && strchr("fFdD", word.at[1]);
	bool real = !bits && (ptx_contains(word, ".") ||
			      (ptx_contains(word, "e") && !ptx_contains(word, "x")));
	char digits[32] = "";
	uint64_t out = 0;
	double value;
	float narrow;

	if (bits) {
		word.at += 2;
		memcpy(digits, word.at, word.end - word.at < 31 ? (size_t)(word.end - word.at) : 31);
		return strtoull(digits, NULL, 16);
	}
	if (!real)
		return ptx_number(word);
	memcpy(digits, word.at, word.end - word.at < 31 ? (size_t)(word.end - word.at) : 31);
	value = strtod(digits, NULL);
	narrow = (float)value;
	if (element == sizeof(narrow))
		memcpy(&out, &narrow, sizeof(narrow));
	else
		memcpy(&out, &value, sizeof(value));
	return out;
}

static CUresult put(struct ptx_data *data, uint32_t element, const struct value *value, size_t *room)
{
	uint64_t number = value->negative ? -value->number : value->number;

	if (data->size + element > *room) {
		size_t wanted = *room ? *room * 2 : 64;
		unsigned char *grown = realloc(data->bytes, wanted);

		if (!grown)
			return CUDA_ERROR_OUT_OF_MEMORY;
		data->bytes = grown;
		*room = wanted;
	}
	memset(data->bytes + data->size, 0, element);
	if (!ptx_is_end(value->name)) {
		size_t count = data->address_count;
		struct ptx_address *grown = realloc(data->addresses, (count + 1) * sizeof(*grown));

		if (!grown)
			return CUDA_ERROR_OUT_OF_MEMORY;
		data->addresses = grown;
		grown[count] = (struct ptx_address){data->size, ptx_copy(value->name), (int64_t)number};
		if (!grown[count].name)
			return CUDA_ERROR_OUT_OF_MEMORY;
		data->address_count++;
	} else {
		memcpy(data->bytes + data->size, &number, element < 8 ? element : 8);
	}
	data->size += element;
	return CUDA_SUCCESS;
}

static void read_word(struct text word, uint32_t element, struct value *value)
{
	if (isdigit((unsigned char)*word.at))
		value->number = number_of(word, element);
	else if (ptx_is(word, "-"))
		value->negative = true;
	else if (!ptx_is(word, "generic") && ptx_word_char(*word.at))
		value->name = word;
}

CUresult ptx_read_data(struct text *t, uint32_t element, struct ptx *ptx, struct ptx_data *data)
{
	struct value value = {0};
	bool any = false;
	int depth = 0;
	size_t room = 0;

	for (;;) {
		struct text word = ptx_peek_word(t);
		bool ends = ptx_is(word, ",") || ptx_is(word, "}") || ptx_is(word, ";");
		CUresult err = CUDA_SUCCESS;

		if (ptx_is_end(word))
			return CUDA_ERROR_INVALID_PTX;
		if (ends && any) {
			ptx_symbol_use(ptx, value.name);
			err = put(data, element, &value, &room);
			value = (struct value){0};
			any = false;
		}
		if (err || (depth == 0 && ends))
			return err;
		(void)ptx_next_word(t);
		depth += ptx_is(word, "{") - ptx_is(word, "}");
		if (ends || ptx_is(word, "{"))
			continue;
		read_word(word, element, &value);
		any = true;
	}
}

void ptx_data_free(struct ptx_data *data)
{
	for (size_t i = 0; i < data->address_count; i++)
		free(data->addresses[i].name);
	free(data->addresses);
	free(data->bytes);
	*data = (struct ptx_data){0};
}
