// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const memoryLimit = "GOMEMLIMIT"

// TestGoKnowsTheMemoryLimit checks that Go's collector uses the container's memory limit, less a
// margin for memory that the collector does not count. Without this limit, the kernel kills a
// program that still has garbage.
func TestGoKnowsTheMemoryLimit(t *testing.T) {
	limited := 0
	for _, args := range [][]string{
		nil,
		{"--set", "agent.resources.limits.memory=1536M", "--set", "patcher.resources.limits.memory=96Mi"},
		{"--set", "manifest=install"},
	} {
		for name, container := range containersOf(decode(t, template(t, "nri-vgpu-system", args...))) {
			limit := container.Resources.Limits.Memory()
			if limit.IsZero() {
				continue
			}
			limited++
			if got := inBytes(t, container, memoryLimit); got < limit.Value()*9/10 || got > limit.Value()*97/100 {
				t.Errorf("%s: %s has %s, and Go %d bytes", args, name, limit, got)
			}
		}
	}
	if limited != 5+5+3 {
		t.Errorf("%d containers have a memory limit", limited)
	}
}

// TestGoKnowsNoOtherMemoryLimit checks that Go collects as by default without a memory limit, and
// that GOMEMLIMIT in agent.env applies.
func TestGoKnowsNoOtherMemoryLimit(t *testing.T) {
	for _, container := range containersOf(decode(t, template(t, "nri-vgpu-system",
		"--set", "agent.resources.limits=null", "--set", "patcher.resources=null", "--set", "cleanup.enabled=false"))) {
		if env := variables(container, memoryLimit); len(env) > 0 && container.Name != "install" {
			t.Errorf("%s has %v and no limit", container.Name, env)
		}
	}
	for _, container := range containersOf(decode(t, template(t, "nri-vgpu-system", "--values", "testdata/operator.yaml"))) {
		if env := variables(container, memoryLimit); container.Name == "agent" && (len(env) != 1 || env[0].Value != "400MiB") {
			t.Errorf("the agent has %v, of agent.env 400MiB", env)
		}
	}
}

// TestRequestsCoverTheMeasurement checks the default resources against the published measurement of a
// node with 500 pods. The kernel must not kill a program that needs twice the measured memory.
func TestRequestsCoverTheMeasurement(t *testing.T) {
	measured, err := os.Open("../../docs/benchmarks/agent-simulated.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer measured.Close()
	containers := containersOf(decode(t, template(t, "nri-vgpu-system")))
	compared := 0
	for lines := bufio.NewScanner(measured); lines.Scan(); {
		var line struct {
			Measure, Program string
			CPU              float64 `json:"cpu_percent_of_a_core"`
			Resident         float64 `json:"resident_mib"`
			Peak             float64 `json:"peak_resident_mib"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if line.Measure != "idle" {
			continue
		}
		compared++
		name := map[string]string{"nri-vgpu": "nri-vgpu/agent", "extended-resource-patcher": "extended-resource-patcher/patcher"}[line.Program]
		requests, limits := containers[name].Resources.Requests, containers[name].Resources.Limits
		if mib := float64(requests.Memory().Value()) / (1 << 20); mib < line.Resident {
			t.Errorf("%s requests %v MiB and holds %v", name, mib, line.Resident)
		}
		if milli := float64(requests.Cpu().MilliValue()); milli < line.CPU*10 {
			t.Errorf("%s requests %v thousandths of a core and uses %v", name, milli, line.CPU*10)
		}
		if mib := float64(limits.Memory().Value()) / (1 << 20); mib < 2*line.Peak {
			t.Errorf("%s is limited to %v MiB and held %v", name, mib, line.Peak)
		}
		if !limits.Cpu().IsZero() {
			t.Errorf("%s has a CPU limit", name)
		}
	}
	if compared != 2 {
		t.Errorf("compared %d programs, want 2", compared)
	}
}

// containersOf returns all containers of DaemonSets, by the names of the DaemonSet and
// the container.
func containersOf(objects []runtime.Object) map[string]corev1.Container {
	all := map[string]corev1.Container{}
	for _, object := range objects {
		if set, ok := object.(*appsv1.DaemonSet); ok {
			pod := set.Spec.Template.Spec
			for _, container := range append(pod.InitContainers, pod.Containers...) {
				all[set.Name+"/"+container.Name] = container
			}
		}
	}
	return all
}

// variables returns a container's variables with this name.
func variables(container corev1.Container, name string) []corev1.EnvVar {
	var found []corev1.EnvVar
	for _, v := range container.Env {
		if v.Name == name {
			found = append(found, v)
		}
	}
	return found
}

// inBytes returns a variable's value as the kubelet sets it and Go parses it.
func inBytes(t *testing.T, container corev1.Container, name string) int64 {
	t.Helper()
	values := map[string]string{}
	for _, v := range container.Env {
		value := v.Value
		if from := v.ValueFrom; from != nil && from.ResourceFieldRef != nil {
			divisor := from.ResourceFieldRef.Divisor.Value()
			value = strconv.FormatInt((container.Resources.Limits.Memory().Value()+divisor-1)/divisor, 10)
		}
		for other, is := range values {
			value = strings.ReplaceAll(value, "$("+other+")", is)
		}
		values[v.Name] = value
	}
	bytes, err := strconv.ParseInt(strings.TrimSuffix(values[name], "B"), 10, 64)
	if err != nil {
		t.Errorf("%s has no %s in bytes: %v", container.Name, name, err)
	}
	return bytes
}
