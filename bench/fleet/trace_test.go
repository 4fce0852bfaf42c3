// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
)

func TestReadTrace(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		nodeList:                                "sn,cpu_milli,memory_mib,gpu,model\nn-0,64000,262144,2,P100\nn-1,8000,1024,0,\n",
		taskPrefix + "some" + taskSuffix:        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\na,12000,16384,1,460,T4|P100,LS\nb,1,2,0,0,,BE\n",
		taskPrefix + "fewer-names" + taskSuffix: "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nc,1000,16,8,1000\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nodes, lists, err := readTrace(dir)
	if err != nil {
		t.Fatal(err)
	}
	part := func(milli int64) fragmentation.Part { return fragmentation.Part{Memory: milli} }
	wantNodes := []fragmentation.Node{
		{CPU: 64000, Memory: 262144, Model: "P100", GPUs: []fragmentation.Part{part(1000), part(1000)}},
		{CPU: 8000, Memory: 1024},
	}
	if diff := cmp.Diff(wantNodes, nodes, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("nodes:\n%s", diff)
	}
	wantLists := []list{
		{"fewer-names", []fragmentation.Shape{{CPU: 1000, Memory: 16, GPUs: 8, Part: part(1000)}}},
		{"some", []fragmentation.Shape{{CPU: 12000, Memory: 16384, GPUs: 1, Part: part(460), Models: []string{"T4", "P100"}}, {CPU: 1, Memory: 2}}},
	}
	if diff := cmp.Diff(wantLists, lists, cmp.AllowUnexported(list{})); diff != "" {
		t.Errorf("lists:\n%s", diff)
	}
}

func TestReadTraceOfNothing(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := readTrace(dir); err == nil || !strings.Contains(err.Error(), nodeList) {
		t.Errorf("without nodes: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, nodeList), []byte("cpu_milli,memory_mib,gpu,model\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readTrace(dir); err == nil || !strings.Contains(err.Error(), "no list of tasks") {
		t.Errorf("without tasks: %v", err)
	}
}

func TestBadTasks(t *testing.T) {
	const heading = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
	for content, want := range map[string]string{
		"":                           "read the heading",
		"name,cpu_milli\n":           `no column "memory_mib"`,
		heading + "a,1,2,3\n":        "wrong number of fields",
		heading + "a,x,2,1,10\n":     "line 2: cpu_milli",
		heading + "a,1,-2,1,10\n":    "line 2: memory_mib: -2 is not between",
		heading + "a,1,2,65,10\n":    "num_gpu: 65 is not between 0 and 64",
		heading + "a,1,2,1,1001\n":   "gpu_milli: 1001 is not between 0 and 1000",
		heading + "a,1,2,1,0\n":      "has no part of them",
		heading + "a,,2,1,1\n":       "cpu_milli",
		heading + "a,1,2,1,1\n\"b\n": "quote",
	} {
		if _, err := readTasks(strings.NewReader(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
	if _, err := readNodes(strings.NewReader("cpu_milli,memory_mib,gpu,model\n1,2,9999999999999,A\n")); err == nil {
		t.Error("a node with too many GPUs is read")
	}
}

// FuzzReadTasks checks that the reader returns an error, or only tasks within the bounds, for every
// file.
func FuzzReadTasks(f *testing.F) {
	f.Add("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,12000,16384,1,460,T4|P100\n")
	f.Add("cpu_milli,memory_mib,num_gpu,gpu_milli\n1,2,8,1000\n")
	f.Fuzz(func(t *testing.T, content string) {
		tasks, err := readTasks(strings.NewReader(content))
		bad := func(s fragmentation.Shape) bool {
			return s.CPU < 0 || s.Memory < 0 || s.GPUs < 0 || s.GPUs > mostGPUs || s.Part.Memory < 0 || s.Part.Memory > whole || s.GPUs > 0 && s.Part.Memory == 0
		}
		if err == nil && slices.ContainsFunc(tasks, bad) {
			t.Errorf("%q is read as %+v", content, tasks)
		}
	})
}
