// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/local"
)

const (
	// workloadProgram keeps the GPU busy. workloadProgram is installed beside the
	// interposer.
	workloadProgram = "vgpu-workload"
	// nvmlProgram queries NVML, which a static program cannot load.
	nvmlProgram = "vgpu-nvml"
	// constructorLibrary uses CUDA in its constructor.
	constructorLibrary = "vgpu-constructor.so"
	// startTimeout is the time that a program may take in addition to its duration. A program that
	// takes longer counts as hung.
	startTimeout = 30 * time.Second
)

// runner starts the workloads, natively and under limits.
type runner struct {
	self string // path of vgpuctl
	lib  string // directory of the workloads
	dir  string // directory of the verification's groups
	gpu  string // UUID, "" until known
}

// hold contains the limits of a tenant, 0 for no limit.
type hold struct {
	memory uint64 // bytes
	cores  int    // percent
	gpus   []string
}

// newRunner finds the workloads and creates the directory of groups.
func newRunner(gpu string) (*runner, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find vgpuctl: %w", err)
	}
	places := local.LibraryDirs(self, func(string) string { return "" })
	if own := os.Getenv("NRI_VGPU_LIB"); own != "" {
		places = append([]string{own}, places...)
	}
	at := slices.IndexFunc(places, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, workloadProgram))
		return err == nil
	})
	if at < 0 {
		return nil, fmt.Errorf("%s is not in %s: install nri-vgpu again", workloadProgram, strings.Join(places, ", "))
	}
	dir, err := os.MkdirTemp("", "vgpu-verify-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the tenants: %w", err)
	}
	return &runner{self: self, lib: places[at], dir: dir, gpu: gpu}, nil
}

func (r *runner) close() { _ = os.RemoveAll(r.dir) }

// env returns the environment of a child. The child's groups are separate from the
// user's.
func (r *runner) env(more ...string) []string {
	env := append(os.Environ(), "XDG_RUNTIME_DIR="+r.dir, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
	if r.gpu != "" {
		env = append(env, "CUDA_VISIBLE_DEVICES="+r.gpu)
	}
	return append(env, more...)
}

// command returns the command of a workload, which runs natively without limits.
func (r *runner) command(ctx context.Context, h hold, args ...string) *exec.Cmd {
	command := append([]string{filepath.Join(r.lib, workloadProgram)}, args...)
	if h.memory > 0 || h.cores > 0 {
		run := []string{r.self, "run"}
		for _, gpu := range append([]string{r.gpu}, h.gpus...) {
			run = append(run, "--gpu", gpu)
		}
		if h.memory > 0 {
			run = append(run, "--memory", strconv.FormatUint(h.memory, 10))
		}
		if h.cores > 0 {
			run = append(run, "--cores", strconv.Itoa(h.cores))
		}
		command = slices.Concat(run, []string{"--"}, command)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = r.env()
	if gpus := append([]string{r.gpu}, h.gpus...); len(gpus) > 1 {
		cmd.Env = r.env("CUDA_VISIBLE_DEVICES=" + strings.Join(gpus, ","))
	}
	cmd.WaitDelay = time.Second // a grandchild may hold its output open
	return cmd
}

// errHangs reports that a program exceeded its time.
var errHangs = errors.New("it hangs")

// failure is a failed call of the driver, or another error that a workload reports.
type failure struct {
	Message string `json:"message"`
	Name    string `json:"error"`
	Code    int    `json:"error_code"`
	Call    string `json:"call"`
}

func (f *failure) Error() string {
	if f.Message != "" {
		return f.Message
	}
	return fmt.Sprintf("%s: %s (%d)", f.Call, f.Name, f.Code)
}

// await waits for a command and parses its output. A workload prints an object even if
// it fails.
func await(ctx context.Context, cmd *exec.Cmd, out, errs *bytes.Buffer, into any) error {
	err := cmd.Wait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errHangs
	}
	if jsonErr := json.Unmarshal(out.Bytes(), into); jsonErr != nil {
		return errors.New(lastLine(errs.String(), errors.Join(err, jsonErr)))
	}
	var f failure
	if err != nil && json.Unmarshal(out.Bytes(), &f) == nil && (f.Code != 0 || f.Message != "") {
		return &f
	}
	return nil
}

// lastLine returns the last line that a program printed, or the error if the program printed no
// line.
func lastLine(output string, err error) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return last
	}
	return fmt.Sprint(err)
}

// run runs a workload. The workload must end within its duration plus startTimeout.
func (r *runner) run(ctx context.Context, within time.Duration, h hold, into any, args ...string) error {
	return r.runWith(ctx, within, h, nil, into, args...)
}

// runWith runs a workload with additional environment variables.
func (r *runner) runWith(ctx context.Context, within time.Duration, h hold, env []string, into any, args ...string) error {
	wait, err := r.startWith(ctx, within, h, env, args...)
	if err != nil {
		return err
	}
	return wait(into)
}

// startWith starts a workload and returns a function that waits for its end.
func (r *runner) startWith(ctx context.Context, within time.Duration, h hold, env []string, args ...string) (func(into any) error, error) {
	ctx, cancel := context.WithTimeout(ctx, within+startTimeout)
	cmd := r.command(ctx, h, args...)
	cmd.Env = append(cmd.Env, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	return func(into any) error {
		defer cancel()
		return await(ctx, cmd, &out, &errs, into)
	}, nil
}

// beside starts a workload. The returned function kills the program.
func (r *runner) beside(ctx context.Context, h hold, args ...string) (stop func(), err error) {
	cmd := r.command(ctx, h, args...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, nil
}

// used returns the GPU memory in use, as NVML reports it, in bytes.
func (r *runner) used(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.lib, nvmlProgram))
	cmd.Env = r.env()
	cmd.Stdin = strings.NewReader("used " + r.gpu + "\n")
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("query NVML: %w", err)
	}
	text, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "ok ")
	if !ok {
		return 0, fmt.Errorf("query NVML: %s", text)
	}
	return strconv.ParseUint(text, 10, 64)
}

// library returns the path of a library that is installed beside the workloads.
func (r *runner) library(name string) string { return filepath.Join(r.lib, name) }

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }
