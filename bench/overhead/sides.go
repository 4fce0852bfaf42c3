// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/local"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// These constants are the compared sides.
const (
	control = "control" // native again, where a difference is due to chance
	empty   = "empty"   // with two empty libraries preloaded
	limited = "limited" // under a limit on memory
	whole   = "whole"   // with the interposer, and limits of all memory
	capped  = "capped"  // under a limit on GPU time that is not reached
)

var sides = []string{native, control, limited, whole}

// callSides are the sides of calls. startSides are the sides of starts, which include the loading
// of two libraries. startSides do not include capped, because a limit on GPU time costs nothing
// before the first launch.
var (
	callSides  = append(slices.Clone(sides), capped)
	startSides = append(slices.Clone(sides), empty)
)

// cappedPercent is a limit that a few launches in each round do not reach.
const cappedPercent = 99

// programs are copies of the built programs, which a concurrent build cannot change.
type programs struct {
	timer, vgpuctl, lib, gpusim string // timer makes the calls
	profiles                    string // directory of the simulator's profiles
}

func newPrograms(build, profiles, temp string) (programs, error) {
	p := programs{
		timer:    filepath.Join(build, "bench", "calls"),
		vgpuctl:  filepath.Join(build, "bin", "vgpuctl"),
		lib:      filepath.Join(temp, "lib"),
		gpusim:   filepath.Join(temp, "gpusim"),
		profiles: profiles,
	}
	if err := os.CopyFS(p.lib, os.DirFS(filepath.Join(build, "lib"))); err != nil {
		return p, fmt.Errorf("copy the interposer (make builds the interposer): %w", err)
	}
	if err := os.Mkdir(p.gpusim, 0o700); err != nil {
		return p, err
	}
	if err := copySimulator(filepath.Join(build, "gpusim"), p.gpusim); err != nil {
		return p, fmt.Errorf("copy the simulator (make builds the simulator): %w", err)
	}
	return p, nil
}

// copySimulator copies the tool, and the libraries of each driver branch.
func copySimulator(from, to string) error {
	libraries, err := filepath.Glob(filepath.Join(from, "drivers", "*", "*.so.1"))
	if err != nil {
		return err
	}
	for _, file := range append(libraries, filepath.Join(from, "gpusim")) {
		name, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(copied), 0o700); err != nil {
			return err
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(copied, raw, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// driver is a simulated driver.
type driver struct {
	name    string
	profile string // of the simulator; "" for its own, fastest driver
	starts  bool   // cuInit and the creation of a context have the durations of an H200
}

// simulatedGPU has room for the contexts of many processes, even in half of its memory.
const simulatedGPU = "uuid = GPU-6e72692d-7667-7075-2d62-656e63680000\nmemory = 512GiB\n"

// startsAsOnH200 sets cuInit and the creation of a context to the durations of an H200. The
// simulated driver sleeps, so that concurrent starts do not wait for each other. Starts in a real
// driver may wait. Therefore the interposer's relative cost is larger on the simulated driver.
const startsAsOnH200 = "init = 100ms\ncontext_start = 100ms\n"

func (d driver) config() string {
	if d.starts {
		return simulatedGPU + startsAsOnH200 + "[gpu]\n"
	}
	return simulatedGPU + "[gpu]\n"
}

// site is a simulated or real machine, with the environments of all sides.
type site struct {
	programs
	driver string
	env    map[string][]string
	truth  *oracle.Oracle // nil on a real machine
	closes []func() error // called in this order
}

// newSite creates a simulated machine in an empty directory.
func newSite(ctx context.Context, p programs, dir string, d driver) (_ *site, err error) {
	s := &site{programs: p, driver: d.name}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	gpu := filepath.Join(dir, "gpu")
	if err := s.create(dir, gpu, d); err != nil {
		return nil, err
	}
	libraries := filepath.Join(p.gpusim, "drivers", s.truth.Names())
	env := append(without(os.Environ()), "GPUSIM_STATE="+filepath.Join(gpu, "state"), "LD_LIBRARY_PATH="+libraries)
	return s, s.makeSides(ctx, dir, env)
}

// realSite returns the machine with its real GPU.
func realSite(ctx context.Context, p programs, dir string) (*site, error) {
	s := &site{programs: p, driver: "real"}
	if err := s.makeSides(ctx, dir, without(os.Environ())); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *site) create(dir, gpu string, d driver) error {
	config := filepath.Join(dir, "gpu.conf")
	if err := os.WriteFile(config, []byte(d.config()), 0o600); err != nil {
		return err
	}
	args := []string{"create", "--config", config}
	if d.profile != "" {
		args = append(args, "--profile", filepath.Join(s.profiles, d.profile+".conf"))
	}
	tool := filepath.Join(s.gpusim, "gpusim")
	command := exec.Command(tool, append(args, gpu)...)
	command.Env = without(os.Environ())
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("make a simulated GPU: %w: %s", err, output)
	}
	var err error
	s.truth, err = oracle.Open(gpu)
	s.closes = append(s.closes, func() error {
		if s.truth != nil {
			err = s.truth.Close()
		}
		return errors.Join(err, exec.Command(tool, "destroy", gpu).Run())
	})
	return err
}

func (s *site) close() error {
	var err error
	for _, end := range slices.Backward(s.closes) {
		err = errors.Join(err, end())
	}
	return err
}

// makeSides starts a vgpuctl group for each limited side. The group's watcher answers
// the programs' queries, as the agent does for a container.
func (s *site) makeSides(ctx context.Context, dir string, env []string) error {
	s.env = map[string][]string{native: env, control: env, empty: s.withEmpty(env)}
	gpu, err := s.once(ctx, native)
	if err != nil {
		return err
	}
	for side, request := range map[string][]string{
		limited: {"--memory", strconv.FormatUint(gpu.Memory/2, 10)},
		whole:   {"--memory", strconv.FormatUint(gpu.Memory, 10)},
		capped:  {"--memory", strconv.FormatUint(gpu.Memory, 10), "--cores", strconv.Itoa(cappedPercent)},
	} {
		pages, err := s.keep(ctx, filepath.Join(dir, side), request, append(slices.Clone(env), "NRI_VGPU_LIB="+s.lib))
		if err != nil {
			return fmt.Errorf("make side %s: %w", side, err)
		}
		s.env[side] = local.Environment(env, s.lib, pages, []limits.Device{{UUID: gpu.UUID}})
	}
	return nil
}

// keep starts an idle program under limits that runs until the site closes. keep returns the
// directory of the program's pages, which other programs share.
func (s *site) keep(ctx context.Context, runtimeDir string, request, env []string) (pages string, err error) {
	if err := os.Mkdir(runtimeDir, 0o700); err != nil {
		return "", err
	}
	args := slices.Concat([]string{"run", "--group", "bench"}, request,
		[]string{"--", "sh", "-c", `echo "$NRI_VGPU_DIR"; exec cat`})
	keeper := exec.CommandContext(ctx, s.vgpuctl, args...)
	keeper.Env = slices.Concat(env, []string{"XDG_RUNTIME_DIR=" + runtimeDir})
	keeper.Stderr = os.Stderr
	in, err := keeper.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := keeper.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := keeper.Start(); err != nil {
		return "", err
	}
	s.closes = append(s.closes, func() error { return errors.Join(in.Close(), keeper.Wait()) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if pages = strings.TrimSpace(line); pages == "" {
		return "", errors.New("vgpuctl run did not start its program")
	}
	return pages, nil
}

// withEmpty adds two empty preloaded libraries to an environment.
func (s *site) withEmpty(env []string) []string {
	libraries := []string{}
	for _, name := range []string{"empty1.so", "empty2.so"} {
		libraries = append(libraries, filepath.Join(filepath.Dir(s.timer), name))
	}
	return append(slices.Clone(env), "LD_PRELOAD="+strings.Join(libraries, ":"))
}

// begun is the report of calls about its start.
type begun struct {
	InitNs  float64 `json:"init_ns"`  // cuInit
	StartNs float64 `json:"start_ns"` // including opening the library and look-ups
	UUID    string  `json:"uuid"`
	Memory  uint64  `json:"total_mem_seen"` // bytes
}

// once starts a process that initialises the driver and exits.
func (s *site) once(ctx context.Context, side string) (begun, error) {
	var said begun
	return said, s.run(ctx, side, &said, "--once")
}

// stormed is the report of calls about concurrent starts.
type stormed struct {
	Ns    float64 `json:"ns"`     // until the last process had ended
	CPUNs float64 `json:"cpu_ns"` // of all processes
}

func (s *site) storm(ctx context.Context, side string, processes int) (stormed, error) {
	var said stormed
	return said, s.run(ctx, side, &said, "--storm", fmt.Sprint(processes))
}

func (s *site) run(ctx context.Context, side string, said any, args ...string) error {
	command := exec.CommandContext(ctx, s.timer, args...)
	command.Env = s.env[side]
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return fmt.Errorf("%s: %s: calls %q: %w: %s", s.driver, side, args, err, output)
	}
	if err := json.Unmarshal(output, said); err != nil {
		return fmt.Errorf("%s: %s: read the output of calls: %w: %s", s.driver, side, err, output)
	}
	return nil
}

// without returns an environment without variables that limit programs or select a
// simulation.
func without(env []string) []string {
	var kept []string
	for _, entry := range env {
		switch name, _, _ := strings.Cut(entry, "="); name {
		case "LD_PRELOAD", "NRI_VGPU_DIR", "CUDA_VISIBLE_DEVICES", "GPUSIM_STATE", "GPUSIM_PROFILE":
		default:
			kept = append(kept, entry)
		}
	}
	return kept
}
