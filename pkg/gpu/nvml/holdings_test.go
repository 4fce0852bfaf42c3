// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

// machineVariable is set in a process that tests a separate machine. A process can open NVML only once.
const machineVariable = "NVML_TEST_MACHINE"

// TestReusedHandle checks the processes of a MIG device after the driver has reused the device's handle
// for another device.
func TestReusedHandle(t *testing.T) {
	if os.Getenv(machineVariable) == "" {
		machine := simtest.NewAs(t, "[gpu]\nmemory = 80GiB\n[mig 1g.10gb]\n[mig 1g.10gb]\n")
		own := machine.Command(t, os.Args[0], "-test.run=^TestReusedHandle$")
		own.Env = append(own.Env, machineVariable+"="+machine.Dir)
		if out, err := own.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	machine := simtest.At(t, os.Getenv(machineVariable))
	library := filepath.Join(machine.LibraryDir, libraryName)
	gpus, err := New(Options{Library: library}).List()
	if err != nil || len(gpus) != 2 {
		t.Fatalf("got %+v, %v", gpus, err)
	}
	first, second := gpus[0].UUID, gpus[1].UUID
	pid := machine.Use(t, 2, 1<<30)
	defer machine.EndUse(t, pid)
	holdings := NewHoldings(Options{Library: library})
	check := func(when string) {
		t.Helper()
		if held, err := holdings.Held(second); err != nil || held[pid] != 1<<30 || len(held) != 1 {
			t.Errorf("%s the MIG device's processes hold %v, %v", when, held, err)
		}
	}
	check("at first")
	machine.Tool(t, "mig", "destroy", first, machine.Dir)
	out, err := exec.Command(filepath.Join(machine.ToolDir, "gpusim"), "mig", "create", gpus[0].MIG.Parent, "1g.10gb", machine.Dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	if held, err := holdings.Held(strings.TrimSpace(string(out))); err != nil || len(held) != 0 {
		t.Errorf("the new MIG device's processes hold %v, %v", held, err)
	}
	check("later")
}
