// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements properties and modes. Some values are configured. Most values are the values
 * of an idle H200.
 */
#include "nvml.h"

#include <stddef.h>
#include <unistd.h>

enum {
	CORES_PER_SM = 128,
	CLOCK_SM_MHZ = 1980,
	CLOCK_MEMORY_MHZ = 3201,
	CLOCK_VIDEO_MHZ = 1545,
	CLOCK_KINDS = 4, /* graphics, SM, memory, video */
	CLOCK_MEMORY = 2,
	CLOCK_VIDEO = 3,
	TEMPERATURE_CELSIUS = 32,
	POWER_IDLE_MW = 76000,
	POWER_FULL_MW = 690000,
	POWER_LIMIT_MW = 700000,
	POWER_LIMIT_MIN_MW = 200000,
};

/* CONSTANT_GETTER defines a getter that returns the same value for every device. */
#define CONSTANT_GETTER(name, type, value)                              \
	NVML_FUNCTION(name, nvmlDevice_t device, type *out)             \
	{                                                               \
		nvmlReturn_t result = nv_enter_gpu(device);          \
                                                                        \
		if (result != NVML_SUCCESS)                             \
			return result;                                  \
		if (!out)                                               \
			return NVML_ERROR_INVALID_ARGUMENT;             \
		*out = (value);                                         \
		return NVML_SUCCESS;                                    \
	}

/* CONFIGURED_GETTER defines a getter for a value derived from the device's entry `gpu`. */
#define CONFIGURED_GETTER(name, type, value)                            \
	NVML_FUNCTION(name, nvmlDevice_t device, type *out)             \
	{                                                               \
		nvmlReturn_t result = nv_enter_gpu(device);          \
		const struct gs_gpu *gpu;                               \
                                                                        \
		if (result != NVML_SUCCESS)                             \
			return result;                                  \
		if (!out)                                               \
			return NVML_ERROR_INVALID_ARGUMENT;             \
		gpu = nv_gpu(device);                                   \
		*out = (value);                                         \
		return NVML_SUCCESS;                                    \
	}

/* PAIR_GETTER defines a getter for a pair of values. */
#define PAIR_GETTER(name, first, second)                                \
	NVML_FUNCTION(name, nvmlDevice_t device, unsigned *one, unsigned *two) \
	{                                                               \
		nvmlReturn_t result = nv_enter_gpu(device);          \
                                                                        \
		if (result != NVML_SUCCESS)                             \
			return result;                                  \
		if (!one || !two)                                       \
			return NVML_ERROR_INVALID_ARGUMENT;             \
		*one = (first);                                         \
		*two = (second);                                        \
		return NVML_SUCCESS;                                    \
	}

/* TEXT_GETTER defines a getter for a text. */
#define TEXT_GETTER(name, value)                                        \
	NVML_FUNCTION(name, nvmlDevice_t device, char *out, unsigned length) \
	{                                                               \
		nvmlReturn_t result = nv_enter_gpu(device);          \
                                                                        \
		return result == NVML_SUCCESS ? nv_copy_text(out, length, value) : result; \
	}

/* architecture returns NVML's number of the architecture with this compute capability. */
static unsigned architecture(const struct gs_gpu *gpu)
{
	static const struct {
		unsigned capability, number;
	} known[] = {
		{120, 10}, {100, 10}, {90, 9}, {89, 8}, {80, 7}, {75, 6}, {70, 5}, {60, 4}, {50, 3},
	};
	unsigned capability = gpu->cc_major * 10 + gpu->cc_minor;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (capability >= known[i].capability)
			return known[i].number;
	return UINT32_MAX;
}

/* ---- identity of the device ---- */

CONSTANT_GETTER(nvmlDeviceGetBrand, unsigned, NVML_BRAND_NVIDIA)
CONSTANT_GETTER(nvmlDeviceGetBusType, unsigned, NVML_BUS_TYPE_PCIE)
CONSTANT_GETTER(nvmlDeviceGetMemoryBusWidth, unsigned, 6144)
CONSTANT_GETTER(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
CONFIGURED_GETTER(nvmlDeviceGetBoardId, unsigned, gpu->minor << 8)
CONFIGURED_GETTER(nvmlDeviceGetArchitecture, unsigned, architecture(gpu))
CONFIGURED_GETTER(nvmlDeviceGetNumGpuCores, unsigned, CORES_PER_SM * gpu->sm_count)
TEXT_GETTER(nvmlDeviceGetBoardPartNumber, "900-21010-0040-000")
TEXT_GETTER(nvmlDeviceGetVbiosVersion, "96.00.BC.00.01")
TEXT_GETTER(nvmlDeviceGetInforomImageVersion, "G520.0280.00.06")

NVML_FUNCTION(nvmlDeviceGetCudaComputeCapability, nvmlDevice_t device, int *major, int *minor)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = (int)nv_gpu(device)->cc_major;
	*minor = (int)nv_gpu(device)->cc_minor;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceValidateInforom, nvmlDevice_t device)
{
	return nv_enter_gpu(device);
}

/* ---- PCIe link ---- */

CONSTANT_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
CONSTANT_GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, 5)
CONSTANT_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
CONSTANT_GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
CONSTANT_GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
CONSTANT_GETTER(nvmlDeviceGetPcieReplayCounter, unsigned, 0)
CONSTANT_GETTER(nvmlDeviceGetNumaNodeId, unsigned, 0)

/* ---- modes, of which only the simulated modes can be set ---- */

CONFIGURED_GETTER(nvmlDeviceGetComputeMode, unsigned, gpu->compute_mode)
CONSTANT_GETTER(nvmlDeviceGetPersistenceMode, unsigned, NVML_FEATURE_ENABLED)
CONSTANT_GETTER(nvmlDeviceGetDisplayMode, unsigned, NVML_FEATURE_DISABLED)
CONSTANT_GETTER(nvmlDeviceGetDisplayActive, unsigned, NVML_FEATURE_DISABLED)
CONSTANT_GETTER(nvmlDeviceGetVirtualizationMode, unsigned, NVML_GPU_VIRTUALIZATION_MODE_NONE)
CONSTANT_GETTER(nvmlDeviceGetAccountingMode, unsigned, NVML_FEATURE_DISABLED)
PAIR_GETTER(nvmlDeviceGetEccMode, NVML_FEATURE_ENABLED, NVML_FEATURE_ENABLED)
CONSTANT_GETTER(nvmlDeviceGetDefaultEccMode, unsigned, NVML_FEATURE_ENABLED)

static nvmlReturn_t set_mode(nvmlDevice_t device, unsigned mode, unsigned simulated)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	return mode == simulated ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

NVML_FUNCTION(nvmlDeviceSetComputeMode, nvmlDevice_t device, unsigned mode)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (mode > NVML_COMPUTEMODE_EXCLUSIVE_PROCESS || mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	nv_lock();
	nv_gpu(device)->compute_mode = mode;
	nv_unlock();
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceSetPersistenceMode, nvmlDevice_t device, unsigned mode)
{
	return set_mode(device, mode, NVML_FEATURE_ENABLED);
}

/* ---- clocks, power, temperature ---- */

CONSTANT_GETTER(nvmlDeviceGetPerformanceState, unsigned, NVML_PSTATE_0)
CONSTANT_GETTER(nvmlDeviceGetPowerState, unsigned, NVML_PSTATE_0)
CONSTANT_GETTER(nvmlDeviceGetPowerManagementMode, unsigned, NVML_FEATURE_ENABLED)
CONSTANT_GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, POWER_LIMIT_MW)
CONSTANT_GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, POWER_LIMIT_MW)
CONSTANT_GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned, POWER_LIMIT_MW)
PAIR_GETTER(nvmlDeviceGetPowerManagementLimitConstraints, POWER_LIMIT_MIN_MW, POWER_LIMIT_MW)
CONSTANT_GETTER(nvmlDeviceGetCurrentClocksEventReasons, nvml_u64, 0)
CONSTANT_GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, nvml_u64, 0)

/* The power rises from idle to full power in proportion to the GPU's busy time. */
NVML_FUNCTION(nvmlDeviceGetPowerUsage, nvmlDevice_t device, unsigned *milliwatts)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!milliwatts)
		return NVML_ERROR_INVALID_ARGUMENT;
	nv_lock();
	*milliwatts = POWER_IDLE_MW +
		      (POWER_FULL_MW - POWER_IDLE_MW) / 100 * nv_busy_percent(nv_gpu(device));
	nv_unlock();
	return NVML_SUCCESS;
}

static nvmlReturn_t clock_of(nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!mhz || kind >= CLOCK_KINDS)
		return NVML_ERROR_INVALID_ARGUMENT;
	*mhz = kind == CLOCK_MEMORY ? CLOCK_MEMORY_MHZ :
	       kind == CLOCK_VIDEO  ? CLOCK_VIDEO_MHZ :
				      CLOCK_SM_MHZ;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetClockInfo, nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
	return clock_of(device, kind, mhz);
}

NVML_FUNCTION(nvmlDeviceGetMaxClockInfo, nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
	return clock_of(device, kind, mhz);
}

NVML_FUNCTION(nvmlDeviceGetApplicationsClock, nvmlDevice_t device, unsigned kind, unsigned *mhz)
{
	return clock_of(device, kind, mhz);
}

NVML_FUNCTION(nvmlDeviceGetDefaultApplicationsClock, nvmlDevice_t device, unsigned kind,
	      unsigned *mhz)
{
	return clock_of(device, kind, mhz);
}

NVML_FUNCTION(nvmlDeviceGetClock, nvmlDevice_t device, unsigned kind, unsigned which,
	      unsigned *mhz)
{
	(void)which; /* current, target, default and maximum are equal here */
	return clock_of(device, kind, mhz);
}

NVML_FUNCTION(nvmlDeviceGetTemperature, nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!celsius || sensor != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = TEMPERATURE_CELSIUS;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetTemperatureV, nvmlDevice_t device, struct nvml_temperature *out)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (out->version != NVML_VERSION(struct nvml_temperature, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (out->sensor != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	out->celsius = TEMPERATURE_CELSIUS;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetTemperatureThreshold, nvmlDevice_t device, unsigned kind,
	      unsigned *celsius)
{
	static const unsigned thresholds[] = {92, 89, 95, 85}; /* shutdown, slowdown, memory, GPU */
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!celsius)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (kind >= sizeof(thresholds) / sizeof(thresholds[0]))
		return NVML_ERROR_NOT_SUPPORTED;
	*celsius = thresholds[kind];
	return NVML_SUCCESS;
}

/* ---- memory errors: always none ---- */

NVML_FUNCTION(nvmlDeviceGetTotalEccErrors, nvmlDevice_t device, unsigned kind, unsigned counter,
	      nvml_u64 *errors)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	(void)kind;
	(void)counter;
	if (result != NVML_SUCCESS)
		return result;
	if (!errors)
		return NVML_ERROR_INVALID_ARGUMENT;
	*errors = 0;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetMemoryErrorCounter, nvmlDevice_t device, unsigned kind,
	      unsigned counter, unsigned location, nvml_u64 *errors)
{
	(void)location;
	return nvmlDeviceGetTotalEccErrors(device, kind, counter, errors);
}

NVML_FUNCTION(nvmlDeviceGetRemappedRows, nvmlDevice_t device, unsigned *correctable,
	      unsigned *uncorrectable, unsigned *pending, unsigned *failed)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!correctable || !uncorrectable || !pending || !failed)
		return NVML_ERROR_INVALID_ARGUMENT;
	*correctable = *uncorrectable = *pending = *failed = 0;
	return NVML_SUCCESS;
}
