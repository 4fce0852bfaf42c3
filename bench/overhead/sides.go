package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/ctl"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// Sides are what is compared.
const (
	control = "control" // native once more: what differs is chance
	empty   = "empty"   // with two libraries preloaded in which there is nothing
	limited = "limited" // under a limit on memory
	whole   = "whole"   // with the interposer, and limits that are all there is
	capped  = "capped"  // under a limit on GPU time that is not reached
)

var sides = []string{native, control, limited, whole}

// callSides are those of calls: a limit on GPU time costs nothing before the
// first launch. startSides are those of starts, of which two libraries more are a part.
var (
	callSides  = append(slices.Clone(sides), capped)
	startSides = append(slices.Clone(sides), empty)
)

// cappedPPM is the limit of 99 %, which a few launches in each round do not reach.
const cappedPPM = 990_000

// bench is the simulated or real machine, and the environments of all sides.
type bench struct {
	program string // calls
	env     map[string][]string
	started string // the simulated GPU with a driver that starts as an H200's; "" on a real one
	close   func() error
}

// What the simulated GPU is configured with: it has room for the contexts of many
// processes, in half of it, too. With the other lines, cuInit and the making of a
// context take what they took on an H200. The driver sleeps for it: however many
// start at once, none waits for another, as it may in a real driver, so that what
// the interposer adds counts for more than it would there.
const (
	simulatedGPU   = "uuid = GPU-6e72692d-7667-7075-2d62-656e63680000\nmemory = 256GiB\ncontext = 512MiB\n"
	startsAsOnH200 = "init = 100ms\ncontext_start = 100ms\n"
)

// newBench prepares in an empty directory.
func newBench(ctx context.Context, build, temp string, simulate bool) (*bench, error) {
	b := &bench{program: filepath.Join(build, "bench", "calls"), close: func() error { return nil }}
	env := without(os.Environ())
	if simulate {
		state, err := b.simulate(build, temp)
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		env = append(env, state, "LD_LIBRARY_PATH="+filepath.Join(build, "gpusim"))
	}
	lib := filepath.Join(temp, "lib")
	// A copy, so that a build meanwhile does no harm.
	err := os.CopyFS(lib, os.DirFS(filepath.Join(build, "lib")))
	if err == nil {
		err = b.makeSides(ctx, lib, temp, env)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// simulate makes the simulated GPU twice, bare and with a driver that takes its
// time, and returns the variable that chooses the first; close removes both.
func (b *bench) simulate(build, temp string) (bare string, err error) {
	tool := filepath.Join(build, "gpusim", "gpusim")
	bare, err = b.create(tool, filepath.Join(temp, "bare"), simulatedGPU+"[gpu]\n")
	if err == nil {
		b.started, err = b.create(tool, filepath.Join(temp, "started"), simulatedGPU+startsAsOnH200+"[gpu]\n")
	}
	return bare, err
}

// create makes one simulated GPU in this directory and returns the variable that chooses it.
func (b *bench) create(tool, dir, config string) (variable string, err error) {
	file := dir + ".conf"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return "", err
	}
	if output, err := exec.Command(tool, "create", "--config", file, dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make a simulated GPU: %w: %s", err, output)
	}
	others := b.close
	b.close = func() error { return errors.Join(exec.Command(tool, "destroy", dir).Run(), others()) }
	return "GPUSIM_STATE=" + filepath.Join(dir, "state"), nil
}

// with is the same bench with a variable changed for all sides.
func (b *bench) with(variable string) *bench {
	other := *b
	other.env = map[string][]string{}
	for side, env := range b.env {
		other.env[side] = append(slices.Clone(env), variable)
	}
	return &other
}

// makeSides writes the pages of the limited sides, as for containers.
func (b *bench) makeSides(ctx context.Context, lib, temp string, env []string) error {
	b.env = map[string][]string{native: env, control: env, empty: b.withEmpty(env)}
	gpu, err := b.once(ctx, native)
	if err != nil {
		return err
	}
	for side, limit := range map[string]limits.Device{
		limited: {MemoryBytes: gpu.Memory / 2, ComputePPM: limits.NoComputeLimit},
		whole:   {MemoryBytes: gpu.Memory, ComputePPM: limits.NoComputeLimit},
		capped:  {MemoryBytes: gpu.Memory, ComputePPM: cappedPPM},
	} {
		pages := filepath.Join(temp, side)
		limit.UUID = gpu.UUID
		devices := []limits.Device{limit}
		if err := errors.Join(os.Mkdir(pages, 0o700), limits.Create(pages, devices)); err != nil {
			return err
		}
		b.env[side] = ctl.Environment(env, lib, pages, devices)
	}
	return nil
}

// withEmpty has programs load two libraries with nothing in them.
func (b *bench) withEmpty(env []string) []string {
	libraries := []string{}
	for _, name := range []string{"empty1.so", "empty2.so"} {
		libraries = append(libraries, filepath.Join(filepath.Dir(b.program), name))
	}
	return append(slices.Clone(env), "LD_PRELOAD="+strings.Join(libraries, ":"))
}

// begun is what calls prints of its start.
type begun struct {
	InitNs  float64 `json:"init_ns"`  // cuInit
	StartNs float64 `json:"start_ns"` // with opening the library and look-ups
	UUID    string  `json:"uuid"`
	Memory  uint64  `json:"total_mem_seen"` // bytes
}

// once starts a process that initialises the driver and ends.
func (b *bench) once(ctx context.Context, side string) (begun, error) {
	var said begun
	return said, b.run(ctx, side, &said, "--once")
}

// stormed is what calls prints of processes that started at once.
type stormed struct {
	Ns    float64 `json:"ns"`     // until the last had ended
	CPUNs float64 `json:"cpu_ns"` // of all
}

func (b *bench) storm(ctx context.Context, side string, processes int) (stormed, error) {
	var said stormed
	return said, b.run(ctx, side, &said, "--storm", fmt.Sprint(processes))
}

func (b *bench) run(ctx context.Context, side string, said any, args ...string) error {
	command := exec.CommandContext(ctx, b.program, args...)
	command.Env = b.env[side]
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return fmt.Errorf("%s: calls %q: %w: %s", side, args, err, output)
	}
	if err := json.Unmarshal(output, said); err != nil {
		return fmt.Errorf("%s: read what calls printed: %w: %s", side, err, output)
	}
	return nil
}

// without is an environment without what would limit programs already.
func without(env []string) []string {
	var kept []string
	for _, entry := range env {
		switch name, _, _ := strings.Cut(entry, "="); name {
		case "LD_PRELOAD", "NRI_VGPU_DIR", "CUDA_VISIBLE_DEVICES", "GPUSIM_STATE":
		default:
			kept = append(kept, entry)
		}
	}
	return kept
}
