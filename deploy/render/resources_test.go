// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// TestResourcesOfThePolicy checks that the chart lists the resources of every enabled dialect and pool
// for the policy for the patcher, and no other resources.
func TestResourcesOfThePolicy(t *testing.T) {
	const plain = "[node]\nforeign_resources = []\n"
	for name, test := range map[string]struct {
		values, file string
		hami         bool
	}{
		"default":                  {},
		"a file without the names": {file: plain},
		"the dialect off":          {file: plain + "[dialects.hami]\nenabled = false\n"},
		"the dialect on":           {file: plain + "[dialects.hami]\nenabled = true\n", hami: true},
		"a comment":                {file: plain + "[dialects.hami] # as HAMi [1]\nenabled = true\n", hami: true},
		"spaces":                   {file: plain + "[ dialects . hami ]\n\"enabled\"=true\n", hami: true},
		"on in a comment":          {file: plain + "[dialects.hami]\n# enabled = true\n"},
		"on in a pool": {hami: true, file: "[[pool]]\nname = \"h\"\nnode_selector = \"gpu=hami\"\n[pool.node]\nforeign_resources = []\n" +
			"[pool.dialects.hami]\nenabled = true\n"},
		"off in the last pool": {hami: true, file: plain + "[dialects.hami]\nenabled = true\n" +
			"[[pool]]\nname = \"p\"\nnode_selector = \"gpu=plain\"\n[pool.dialects.hami]\nenabled = false\n"},
		"values and another key in a pool": {hami: true, values: `
config:
  node: {foreign_resources: []}
  dialects: {hami: {enabled: true}}
  pool: [{name: t4, node_selector: nvidia.com/gpu.product=Tesla-T4, dialects: {hami: {number_per_gpu: 4}}}]`},
		"values for a pool": {hami: true, values: `
config:
  pool: [{name: h, node_selector: gpu=hami, node: {foreign_resources: []}, dialects: {hami: {enabled: true}}}]`},
		"other names in a pool": {values: `
config:
  pool: [{name: p, node_selector: gpu, dialects: {native: {memory: example.com/mib}, alnair: {enabled: false},
    metagpu: {device_sharing: [{resource_name: example.com/part, shares_per_gpu: 10, uuids: ["*"]}]}}}]`},
		"another dialect with the name": {values: `
config: {node: {foreign_resources: []}, dialects: {native: {number: nvidia.com/gpu}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"--values", written(t, "values.yaml", test.values)}
			if test.file != "" {
				args = append(args, "--set-file", "configFile="+written(t, "config.toml", test.file))
			}
			rendered := template(t, "nri-vgpu-system", args...)
			file, err := config.ParseFile([]byte(configured(t, rendered)))
			if err != nil {
				t.Fatal(err)
			}
			want := request.Names(file.Config.Dialects)
			for _, pool := range file.Pools {
				want = append(want, request.Names(pool.Config.Dialects)...)
			}
			got := strings.Fields(dataOf(t, rendered, "nri-vgpu", "resources"))
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(slices.Compact(want), got); diff != "" {
				t.Errorf("resources (-agent +chart):\n%s", diff)
			}
			if slices.Contains(got, "nvidia.com/gpumem") != test.hami {
				t.Errorf("with HAMi's dialect: want %v, got %q", test.hami, got)
			}
		})
	}
}

// written writes a file for the test, and returns its path.
func written(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
