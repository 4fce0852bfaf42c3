// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
)

// heading is the first line of the output: the conditions of the measurement.
type heading struct {
	Bench string `json:"bench"`
	report.Conditions
	WarmupS  float64 `json:"warmup_s"`
	MeasureS float64 `json:"measure_s"`
}

// journal writes each measured point to standard output and to a file. A later run can resume from
// the file.
type journal struct {
	out  io.Writer
	file *os.File // nil without a file
}

// openJournal opens the file, if path is not empty. With resume, openJournal keeps and returns the
// points in the file. Without resume, openJournal truncates the file.
func openJournal(out io.Writer, path string, resume bool) (*journal, []Record, error) {
	if path == "" {
		return &journal{out: out}, nil, nil
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	var records []Record
	if resume {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
		var err error
		if records, err = readRecords(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
	}
	file, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("open the output: %w", err)
	}
	return &journal{out, file}, records, nil
}

func (j *journal) write(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if _, err := j.out.Write(line); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	if j.file == nil {
		return nil
	}
	if _, err := j.file.Write(line); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	return j.file.Close()
}

// readRecords reads the points of an output and skips other lines. If a point was measured twice,
// readRecords returns the later measurement.
func readRecords(path string) ([]Record, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read earlier points: %w", err)
	}
	defer file.Close()
	var records []Record
	type key struct{ profile, id string }
	at := map[key]int{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("read earlier points: %s, line %d: %w", path, n, err)
		}
		k := key{r.Profile, r.ID}
		if i, again := at[k]; again {
			records[i] = r
		} else if r.ID != "" {
			at[k] = len(records)
			records = append(records, r)
		}
	}
	return records, lines.Err()
}
