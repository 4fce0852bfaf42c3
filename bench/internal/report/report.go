// SPDX-License-Identifier: Apache-2.0

// Package report writes the results of benchmarks: JSON lines under a heading
// that describes the conditions.
package report

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// Conditions are the conditions of a measurement.
type Conditions struct {
	Time   string `json:"time"` // RFC 3339, UTC
	Commit string `json:"commit"`
	GPU    string `json:"gpu"` // "simulated" or "real"
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	OS     string `json:"os"`
}

// Now returns this machine's conditions. commit is the output of git describe for the sources.
func Now(gpu, commit string) Conditions {
	return Conditions{
		Time:   time.Now().UTC().Format(time.RFC3339),
		Commit: commit,
		GPU:    gpu,
		CPU:    cpuModel("/proc/cpuinfo"),
		CPUs:   runtime.NumCPU(),
		OS:     runtime.GOOS + "/" + runtime.GOARCH,
	}
}

func cpuModel(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(content)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Flags registers the flags of every benchmark: the commit of the sources, and the file of the
// output for Open.
func Flags(flags *flag.FlagSet, commit, output *string) {
	flags.StringVar(commit, "commit", "", "commit of the measured sources, for the heading")
	flags.StringVar(output, "output", "", "file for the JSON lines instead of the standard output")
}

// Lines writes values as lines of JSON.
type Lines struct {
	out    io.Writer
	closer io.Closer
}

// Open returns Lines that write to a new file, or to standard output if path is empty.
func Open(path string) (*Lines, error) {
	if path == "" {
		return &Lines{out: os.Stdout}, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("open the output: %w", err)
	}
	return &Lines{out: file, closer: file}, nil
}

// Write writes one line.
func (l *Lines) Write(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if _, err := l.out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// Close closes the file.
func (l *Lines) Close() error {
	if l.closer == nil {
		return nil
	}
	return l.closer.Close()
}

// These constants are the values of GPU.
const (
	Real      = "real"
	Simulated = "simulated"
)

// GPU reports whether this machine has a real GPU or needs a simulated GPU.
func GPU() string {
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		return Real
	}
	return Simulated
}
