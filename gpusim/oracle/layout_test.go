// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLayout compares every constant of layout.go with the C compiler's value
// for the declaration.
func TestLayout(t *testing.T) {
	tests := []struct {
		c    string
		want uint64
	}{
		{"GS_MAGIC", stateMagic},
		{"GS_VERSION", stateVersion},
		{"GS_MAX_GPUS", maxGPUs},
		{"GS_MAX_PROCS", maxProcs},
		{"GS_HISTORY_RING", historyRing},
		{"GS_NVML_USERS", nvmlUsers},
		{"GS_MAX_IDS", maxIDs},
		{"GS_LOCK_BASE", lockBase},
		{"sizeof(struct gs_state)", stateSize},
		{"offsetof(struct gs_state, magic)", stateMagicAt},
		{"offsetof(struct gs_state, version)", stateVersionAt},
		{"offsetof(struct gs_state, gpu_count)", stateGPUCountAt},
		{"offsetof(struct gs_state, size)", stateSizeAt},
		{"offsetof(struct gs_state, clock_ns)", stateClockAt},
		{"offsetof(struct gs_state, history_seq)", stateHistoryAt},
		{"offsetof(struct gs_state, driver.names)", stateNamesAt},
		{"sizeof(((struct gs_state *)0)->driver.names)", stateNamesSize},
		{"offsetof(struct gs_state, gpus)", stateGPUsAt},
		{"offsetof(struct gs_state, history)", stateHistoriesAt},
		{"offsetof(struct gs_state, procs)", stateProcsAt},
		{"sizeof(struct gs_gpu)", gpuSize},
		{"offsetof(struct gs_gpu, uuid)", gpuUUIDAt},
		{"offsetof(struct gs_gpu, name)", gpuNameAt},
		{"sizeof(((struct gs_gpu *)0)->name)", gpuNameSize},
		{"offsetof(struct gs_gpu, pci_bus_id)", gpuPCIAt},
		{"sizeof(((struct gs_gpu *)0)->pci_bus_id)", gpuPCISize},
		{"offsetof(struct gs_gpu, memory_bytes)", gpuMemoryAt},
		{"offsetof(struct gs_gpu, minor)", gpuMinorAt},
		{"offsetof(struct gs_gpu, context_bytes)", gpuContextAt},
		{"offsetof(struct gs_gpu, mig.role)", gpuMIGRoleAt},
		{"GS_MIG_DEVICE", migDevice},
		{"offsetof(struct gs_gpu, busy_ns)", gpuBusyAt},
		{"offsetof(struct gs_gpu, faults.lost)", gpuLostAt},
		{"offsetof(struct gs_gpu, peak_used_bytes)", gpuPeakAt},
		{"sizeof(struct gs_proc)", procSize},
		{"offsetof(struct gs_proc, in_use)", procInUseAt},
		{"offsetof(struct gs_proc, self_pid)", procSelfPidAt},
		{"offsetof(struct gs_proc, pid_namespace)", procPidNSAt},
		{"offsetof(struct gs_proc, start_ns)", procStartAt},
		{"offsetof(struct gs_proc, seen_pid)", procSeenPidAt},
		{"offsetof(struct gs_proc, comm)", procCommAt},
		{"offsetof(struct gs_proc, hostname)", procHostnameAt},
		{"offsetof(struct gs_proc, gpu)", procGPUsAt},
		{"sizeof(((struct gs_proc *)0)->comm)", commSize},
		{"sizeof(((struct gs_proc *)0)->hostname)", hostnameSize},
		{"sizeof(struct gs_proc_gpu)", useSize},
		{"offsetof(struct gs_proc_gpu, bytes)", useBytesAt},
		{"offsetof(struct gs_proc_gpu, peak_bytes)", usePeakAt},
		{"offsetof(struct gs_proc_gpu, gpu_time_ns)", useTimeAt},
		{"offsetof(struct gs_proc_gpu, context_bytes)", useContextAt},
		{"offsetof(struct gs_proc_gpu, contexts)", useContextsAt},
		{"offsetof(struct gs_proc_gpu, launches)", useLaunchesAt},
		{"sizeof(struct gs_history)", historySize},
		{"offsetof(struct gs_history, seq)", historySeqAt},
		{"offsetof(struct gs_history, start_ns)", historyStartAt},
		{"offsetof(struct gs_history, end_ns)", historyEndAt},
		{"offsetof(struct gs_history, self_pid)", historySelfPidAt},
		{"offsetof(struct gs_history, seen_pid)", historySeenPidAt},
		{"offsetof(struct gs_history, comm)", historyCommAt},
		{"offsetof(struct gs_history, hostname)", historyHostnameAt},
		{"offsetof(struct gs_history, gpu)", historyGPUsAt},
		{"offsetof(struct gs_state, identities)", stateIdentitiesAt},
		{"offsetof(struct gs_state, nvml_users)", stateNVMLUsersAt},
		{"offsetof(struct gs_proc, exec_id)", procExecIDAt},
		{"offsetof(struct gs_history, exec_id)", historyExecIDAt},
		{"offsetof(struct gs_history, pid_namespace)", historyPidNSAt},
		{"sizeof(struct gs_identity)", identitySize},
		{"offsetof(struct gs_identity, exec_id)", identityExecIDAt},
		{"offsetof(struct gs_identity, self_pid)", identitySelfPidAt},
		{"offsetof(struct gs_identity, in_use)", identityInUseAt},
		{"sizeof(struct gs_nvml_user)", nvmlUserSize},
		{"offsetof(struct gs_nvml_user, exec_id)", nvmlUserExecIDAt},
		{"offsetof(struct gs_nvml_user, pid_namespace)", nvmlUserPidNSAt},
		{"offsetof(struct gs_nvml_user, start_ns)", nvmlUserStartAt},
		{"offsetof(struct gs_nvml_user, calls)", nvmlUserCallsAt},
		{"offsetof(struct gs_nvml_user, self_pid)", nvmlUserSelfPidAt},
		{"offsetof(struct gs_nvml_user, seen_pid)", nvmlUserSeenPidAt},
		{"offsetof(struct gs_nvml_user, identity)", nvmlUserIdentityAt},
		{"offsetof(struct gs_nvml_user, in_use)", nvmlUserInUseAt},
		{"offsetof(struct gs_nvml_user, comm)", nvmlUserCommAt},
		{"offsetof(struct gs_nvml_user, hostname)", nvmlUserHostnameAt},
		{"sizeof(struct gs_history_gpu)", historyUseSize},
		{"offsetof(struct gs_history_gpu, peak_bytes)", historyUsePeakAt},
		{"offsetof(struct gs_history_gpu, gpu_time_ns)", historyUseTimeAt},
	}
	expressions := make([]string, len(tests))
	for i, test := range tests {
		expressions[i] = test.c
	}
	got := compileAndPrint(t, expressions)
	for i, test := range tests {
		if got[i] != test.want {
			t.Errorf("%s is %d in C, %d in Go", test.c, got[i], test.want)
		}
	}
}

// compileAndPrint returns the values of C expressions over state.h.
func compileAndPrint(t *testing.T, expressions []string) []uint64 {
	t.Helper()
	var source strings.Builder
	source.WriteString("#include \"state.h\"\n#include <stdio.h>\nint main(void)\n{\n")
	for _, expression := range expressions {
		fmt.Fprintf(&source, "\tprintf(\"%%llu\\n\", (unsigned long long)(%s));\n", expression)
	}
	source.WriteString("\treturn 0;\n}\n")
	dir := t.TempDir()
	file := filepath.Join(dir, "layout.c")
	if err := os.WriteFile(file, []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	program := compile(t, filepath.Join(dir, "layout"), file)
	output, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	values := make([]uint64, len(expressions))
	for i, line := range strings.Fields(string(output)) {
		if _, err := fmt.Sscan(line, &values[i]); err != nil {
			t.Fatal(err)
		}
	}
	return values
}

// compile compiles C files that use the simulated driver's core.
func compile(t *testing.T, program string, files ...string) string {
	t.Helper()
	args := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-I../src", "-o", program}, files...)
	if output, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v:\n%s", err, output)
	}
	return program
}
