// SPDX-License-Identifier: Apache-2.0

package nvmltest

import (
	"bufio"
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

// TestExports compares the library's names with the names of the real library.
func TestExports(t *testing.T) {
	got := exports(t)
	want := lines(t, "../data/libnvidia-ml-exports.txt")
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(want) != 404 {
		t.Errorf("%d names", len(want))
	}
}

// TestNvidiaSMI looks up every NVML name that nvidia-smi uses.
func TestNvidiaSMI(t *testing.T) {
	names := exports(t)
	for _, name := range lines(t, "testdata/nvidia-smi-lookups.txt") {
		if strings.HasPrefix(name, "nvml") && !slices.Contains(names, name) {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestNotSimulated calls functions that are only stubs.
func TestNotSimulated(t *testing.T) {
	library, _ := start(t)
	device := deviceAt(t, library, 0)
	_, result := device.GetFanSpeed()
	expect(t, result, nvml.ERROR_NOT_SUPPORTED)
	_, result = device.GetBridgeChipInfo()
	expect(t, result, nvml.ERROR_NOT_SUPPORTED)
	_, _, result = device.GetGpuOperationMode()
	expect(t, result, nvml.ERROR_NOT_SUPPORTED)
}

// exports returns the names that the built library defines, sorted.
func exports(t *testing.T) []string {
	t.Helper()
	file, err := elf.Open(filepath.Join(simtest.Build(t), "libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, symbol := range symbols {
		if symbol.Section != elf.SHN_UNDEF {
			names = append(names, symbol.Name)
		}
	}
	slices.Sort(names)
	return names
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var lines []string
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		lines = append(lines, scanner.Text())
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
