// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// chartDir is the chart in the source tree.
const chartDir = "deploy/chart"

// writeChart packs the chart. helm package would record the files' times of change.
func writeChart(o options) error {
	names, err := chartFiles(filepath.Join(o.source, chartDir), ".")
	if err != nil {
		return err
	}
	var entries []entry
	for _, name := range names {
		e := entry{path: "nri-vgpu/" + name, source: filepath.Join(o.source, chartDir, name)}
		if name == "Chart.yaml" {
			e.source = ""
			if e.content, err = o.stamped(filepath.Join(chartDir, name)); err != nil {
				return err
			}
		}
		entries = append(entries, e)
	}
	content, err := archive(entries)
	if err != nil {
		return err
	}
	return o.write(fmt.Sprintf("nri-vgpu-%s.tgz", o.version), content)
}

// chartFiles lists the files below a directory of the chart, sorted. The directory "files" contains
// links to files of the source tree, which chartFiles follows. Like .helmignore, chartFiles omits
// hidden files.
func chartFiles(chart, dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(chart, dir))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		name := filepath.Join(dir, e.Name())
		info, err := os.Stat(filepath.Join(chart, name))
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			names = append(names, name)
			continue
		}
		below, err := chartFiles(chart, name)
		if err != nil {
			return nil, err
		}
		names = append(names, below...)
	}
	slices.Sort(names)
	return names, nil
}
