// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// problems returns the problems of a document.
func problems(t *testing.T, document string) []string {
	t.Helper()
	_, err := Parse([]byte(document))
	if err == nil {
		return nil
	}
	var bad *Error
	if !errors.As(err, &bad) {
		t.Fatalf("%s: %v", document, err)
	}
	var all []string
	for _, p := range bad.Problems {
		all = append(all, p.String())
	}
	return all
}

func TestNumbersAreBounded(t *testing.T) {
	for key, bounds := range map[string]struct{ low, high int }{
		"node.reserved_memory_mib":          {0, 16777216},
		"node.slots_per_gpu":                {1, 1000},
		"memory.overcommit_percent":         {0, 1000},
		"memory.context_mib":                {0, 16384},
		"placement.evict_after":             {0, 1000},
		"sharing.mps.clients_per_gpu":       {1, 48},
		"sharing.mps.reserved_memory_mib":   {0, 16777216},
		"sharing.mps.shm_size_mib":          {1, 1048576},
		"dialects.aws.slots_per_gpu":        {1, 48},
		"dialects.volcano.number_per_gpu":   {1, 1000},
		"health.ignored_xids":               {1, 9999},
		"dialects.metagpu.device_sharing":   {1, 1000},
		"sharing.mps.clients_per_container": {1, 48},
	} {
		for n, ok := range map[int]bool{bounds.low: true, bounds.low - 1: false, bounds.high: true, bounds.high + 1: false} {
			value := fmt.Sprint(n)
			switch key {
			case "health.ignored_xids":
				value = "[" + value + "]"
			case "dialects.metagpu.device_sharing":
				value = `[{ resource_name = "a.b/c", shares_per_gpu = ` + value + " }]"
			}
			document := key + " = " + value
			if key == "sharing.mps.clients_per_container" {
				document += "\nsharing.mps.clients_per_gpu = 48"
			}
			if got := problems(t, document); (got == nil) != ok {
				t.Errorf("%s: %v", document, got)
			}
		}
	}
}

func TestDurationsAreBounded(t *testing.T) {
	for key, values := range map[string]map[string]bool{
		"detection.interval": {"1s": true, "999ms": false, "8s": true, "8001ms": false},
		"nri.pod_wait":       {"1ns": true, "0s": false, "1499ms": true, "1500ms": false},
	} {
		for value, ok := range values {
			if got := problems(t, fmt.Sprintf("%s = %q", key, value)); (got == nil) != ok {
				t.Errorf("%s = %s: %v", key, value, got)
			}
		}
	}
}

func TestNamesAndPlaces(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for key, values := range map[string]map[string]bool{
		"http.address":             {":9394": true, "localhost:0": true, "[::1]:65535": true, ":65536": false, ":http": false, "9394": false, "": false},
		"http.probe_address":       {"127.0.0.1:1": true, "127.0.0.1": false, ":9394": false, "127.0.0.1:9394": false, "127.0.0.1:0": true},
		"paths.run_dir":            {"/" + long(89): true, "/" + long(90): false},
		"injection.cdi_kind":       {"nvidia.com/gpu": true, "gpu": false},
		"paths.state_dir":          {"/": false, "/var/lib": false, "/var/lib/x": true, "": false, "/a/../b": false},
		"guard.plugin_dir":         {"": true, "/opt/nri/plugins": true, "plugins": false},
		"driver.root":              {"": true, "/run/driver": true, "/run//driver": false},
		"nri.plugin_name":          {"nri-vgpu.2_a": true, "-a": false},
		"nri.plugin_index":         {"00": true, "98": true, "99": false, "100": false},
		"dialects.aws.node_label":  {"": true, "k8s.amazonaws.com/accelerator=vgpu": true, "gpu": true, "gpu=": true, "=vgpu": false, "a b": false},
		"dialects.native.memory":   {long(244) + "/m": true, long(245) + "/m": false, "a..b/m": false, "a.kubernetes.io/m": false, "requests.a/m": false, "a/m": true, "a/" + long(64): false},
		"node.exempt_namespaces":   {"kube-system": true, long(63): true, long(64): false, "Upper": false},
		"injection.cdi_spec_dirs":  {"/var/run/cdi": true, "cdi": false},
		"injection.direct.devices": {"/dev/nvidia{minor}": true, "/dev/{index}{uuid}": true, "/dev/{": false, "/dev/}": false, "dev": false},
	} {
		for value, ok := range values {
			document := fmt.Sprintf("%s = %q", key, value)
			switch key {
			case "node.exempt_namespaces", "injection.cdi_spec_dirs", "injection.direct.devices":
				document = fmt.Sprintf("%s = [%q]", key, value)
			}
			if got := problems(t, document); (got == nil) != ok {
				t.Errorf("%s: %v", document, got)
			}
		}
	}
}

func TestAddressesDiffer(t *testing.T) {
	for addresses, ok := range map[[2]string]bool{
		{":1", ":1"}:                   false,
		{":1", ":01"}:                  false,
		{"127.0.0.1:1", "127.0.0.1:1"}: false,
		{"0.0.0.0:1", "127.0.0.1:1"}:   false,
		{"127.0.0.1:1", "[::]:1"}:      false,
		{"127.0.0.1:1", "127.0.0.2:1"}: true,
		{"127.0.0.1:1", "127.0.0.1:2"}: true,
		{"127.0.0.1:0", "127.0.0.1:0"}: true,
	} {
		if got := problems(t, fmt.Sprintf("http = {address = %q, probe_address = %q}", addresses[0], addresses[1])); (got == nil) != ok {
			t.Errorf("%q: %v", addresses, got)
		}
	}
}

func TestListsOfUUIDs(t *testing.T) {
	const one, two = "GPU-1", "MIG-2"
	for list, want := range map[string]string{
		`["*"]`:                          "",
		`["` + one + `", "` + two + `"]`: "",
		`[]`:                             "uuids is empty",
		`["*", "` + one + `"]`:           `uuids[0] is "*" beside UUIDs`,
		`["` + one + `", "x"]`:           `uuids[1] is "x"; allowed`,
		`["` + one + `", "` + one + `"]`: `uuids[1] is "GPU-1" for the second time`,
	} {
		got := problems(t, `dialects.metagpu.device_sharing = [{ resource_name = "a.b/c", uuids = `+list+" }]")
		if want == "" && got != nil || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("%s: %v, want %q", list, got, want)
		}
	}
	if got := problems(t, "dialects.metagpu.device_sharing = []"); len(got) != 1 {
		t.Errorf("a dialect that shares nothing: %v", got)
	}
	if got := problems(t, "dialects.metagpu.device_sharing = []\ndialects.metagpu.enabled = false"); got != nil {
		t.Errorf("a dialect that is off: %v", got)
	}
}

func TestNoDirectoryForSpecs(t *testing.T) {
	got := problems(t, "injection.cdi_spec_dirs = []")
	if len(got) != 2 || !strings.Contains(strings.Join(got, "\n"), "cdi_spec_dirs is empty") {
		t.Errorf("got %v", got)
	}
}

// TestOneWrongNumberIsOneProblem checks that an invalid clients_per_gpu causes no second problem
// for clients_per_container.
func TestOneWrongNumberIsOneProblem(t *testing.T) {
	got := problems(t, "sharing.mps.clients_per_gpu = 0\nsharing.mps.clients_per_container = 1")
	if len(got) != 1 || !strings.Contains(got[0], "clients_per_gpu") {
		t.Errorf("got %v", got)
	}
}

func TestContextBytes(t *testing.T) {
	for mib, want := range map[int]uint64{-1: 0, 0: 0, 1: 1048576, 512: 536870912} {
		if got := (Memory{ContextMiB: mib}).ContextBytes(); got != want {
			t.Errorf("a GPU of %d MiB: %d, want %d", mib, got, want)
		}
	}
}

// TestProblemsOfLongDocuments checks that problems have lines in documents of up to 2000 lines, and
// have no lines in longer documents.
func TestProblemsOfLongDocuments(t *testing.T) {
	for lines, want := range map[int]string{2000: "line 1999: ", 2001: "node.slots_per_gpu is 0"} {
		document := strings.Repeat("\n", lines-2) + "node.slots_per_gpu = 0\n"
		if got := problems(t, document); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%d lines: %v, want %q", lines, got, want)
		}
	}
}
