// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/fragmentation"
)

// A trace is a directory with one list of nodes and any number of lists of tasks, in the format of
// Alibaba's cluster-trace-gpu-v2023 (https://github.com/alibaba/clusterdata).
const (
	nodeList   = "openb_node_list_gpu_node.csv"
	taskPrefix = "openb_pod_list_"
	taskSuffix = ".csv"
)

// whole is a whole GPU in the trace's unit, thousandths of a GPU.
const whole = 1000

// list is a list of tasks, by its name.
type list struct {
	name  string
	tasks []fragmentation.Shape
}

// readTrace reads the nodes and all lists of tasks of a directory.
func readTrace(dir string) (nodes []fragmentation.Node, lists []list, err error) {
	if nodes, err = readFile(filepath.Join(dir, nodeList), readNodes); err != nil {
		return nil, nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, taskPrefix+"*"+taskSuffix))
	if err != nil {
		return nil, nil, err
	}
	if len(paths) == 0 {
		return nil, nil, fmt.Errorf("%s has no list of tasks %s*%s", dir, taskPrefix, taskSuffix)
	}
	for _, path := range paths {
		tasks, err := readFile(path, readTasks)
		if err != nil {
			return nil, nil, err
		}
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), taskPrefix), taskSuffix)
		lists = append(lists, list{name, tasks})
	}
	return nodes, lists, nil
}

func readFile[T any](path string, read func(io.Reader) (T, error)) (T, error) {
	f, err := os.Open(path)
	if err != nil {
		var none T
		return none, err
	}
	defer f.Close()
	all, err := read(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return all, err
}

// row is a row of a table, by the names of its columns. err is the first error that number found in
// the row.
type row struct {
	columns map[string]int
	fields  []string
	err     error
}

func (r *row) text(column string) string {
	if i, ok := r.columns[column]; ok {
		return r.fields[i]
	}
	return ""
}

// number returns a field between 0 and a maximum.
func (r *row) number(column string, most int64) int64 {
	value, err := strconv.ParseInt(r.text(column), 10, 64)
	if err == nil && (value < 0 || value > most) {
		err = fmt.Errorf("%d is not between 0 and %d", value, most)
	}
	if err != nil {
		r.err = cmp.Or(r.err, fmt.Errorf("%s: %w", column, err))
		return 0
	}
	return value
}

// These constants bound the resources of a node. A file with larger values is damaged.
const (
	mostHost = 1 << 40
	mostGPUs = 64
)

// readRows reads a table that has at least the columns in columns.
func readRows(from io.Reader, columns []string, each func(*row)) error {
	table := csv.NewReader(from)
	head, err := table.Read()
	if err != nil {
		return fmt.Errorf("read the heading: %w", err)
	}
	index := map[string]int{}
	for i, name := range head {
		index[name] = i
	}
	for _, column := range columns {
		if _, ok := index[column]; !ok {
			return fmt.Errorf("the heading %q has no column %q", head, column)
		}
	}
	for {
		fields, err := table.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r := &row{columns: index, fields: fields}
		if each(r); r.err != nil {
			line, _ := table.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, r.err)
		}
	}
}

func readNodes(from io.Reader) (nodes []fragmentation.Node, err error) {
	err = readRows(from, []string{"cpu_milli", "memory_mib", "gpu", "model"}, func(r *row) {
		gpus := slices.Repeat([]fragmentation.Part{{Memory: whole}}, int(r.number("gpu", mostGPUs)))
		nodes = append(nodes, fragmentation.Node{
			CPU: r.number("cpu_milli", mostHost), Memory: r.number("memory_mib", mostHost), Model: r.text("model"), GPUs: gpus,
		})
	})
	return nodes, err
}

// readTasks reads a list of tasks. Without the column gpu_spec, every model is allowed.
func readTasks(from io.Reader) (tasks []fragmentation.Shape, err error) {
	err = readRows(from, []string{"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}, func(r *row) {
		task := fragmentation.Shape{
			CPU: r.number("cpu_milli", mostHost), Memory: r.number("memory_mib", mostHost), GPUs: int(r.number("num_gpu", mostGPUs)),
		}
		if part := r.number("gpu_milli", whole); task.GPUs > 0 {
			task.Part.Memory = part
			if part == 0 && r.err == nil {
				r.err = errors.New("gpu_milli: a task with GPUs has no part of them")
			}
		}
		if models := r.text("gpu_spec"); models != "" {
			task.Models = strings.Split(models, "|")
		}
		tasks = append(tasks, task)
	})
	return tasks, err
}
