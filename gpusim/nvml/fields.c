// SPDX-License-Identifier: Apache-2.0
/* This file implements fields, values that NVML returns by number instead of by separate functions.
 */
#include "nvml.h"

enum { FIELD_RECOVERY_ACTION = 230, TYPE_UNSIGNED = 1 };

static void get_field(nvmlDevice_t device, struct nvml_field *field)
{
	if (field->id != FIELD_RECOVERY_ACTION) {
		field->result = NVML_ERROR_NOT_SUPPORTED;
		return;
	}
	field->timestamp = 0;
	field->latency = 0;
	field->type = TYPE_UNSIGNED;
	field->whole = 0;
	field->value = __atomic_load_n(&nv_gpu(device)->faults.recovery, __ATOMIC_RELAXED);
	field->result = NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetFieldValues, nvmlDevice_t device, int count, struct nvml_field *fields)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (count <= 0 || !fields)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < count; i++)
		get_field(device, &fields[i]);
	return NVML_SUCCESS;
}
