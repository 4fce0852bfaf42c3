package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// launcher makes the command lines of programs under a limit.
type launcher interface {
	// command is the command line and what the environment needs besides
	// the machine's. dir is one that all programs of a point share, and no
	// other has; it is removed afterwards.
	command(limit uint64, dir, program string, args []string) (argv, env []string)
	// name says what holds the programs to the limit.
	name() string
}

// groupName is the name of the programs of one point, which share a limit. Each
// point has a directory of groups of its own.
const groupName = "bench"

// ours runs programs with vgpuctl and the libraries of a directory.
type ours struct{ vgpuctl, lib string }

func (o ours) name() string { return "nri-vgpu" }

func (o ours) command(limit uint64, dir, program string, args []string) (argv, env []string) {
	argv = []string{o.vgpuctl, "run", "--memory", strconv.FormatUint(limit, 10), "--group", groupName, "--", program}
	return append(argv, args...), []string{"XDG_RUNTIME_DIR=" + dir, "NRI_VGPU_LIB=" + o.lib}
}

// preloaded runs programs with another library.
type preloaded struct {
	library string
	// variables are NAME=VALUE; {limit_bytes}, {limit_mib} and {run_dir}
	// stand for the point's.
	variables []string
}

// newPreloaded reads the variables from a line of words.
func newPreloaded(library, variables string) (preloaded, error) {
	path, err := filepath.Abs(library)
	if err != nil {
		return preloaded{}, err
	}
	if _, err := os.Stat(path); err != nil {
		return preloaded{}, fmt.Errorf("library to compare with: %w", err)
	}
	p := preloaded{library: path, variables: strings.Fields(variables)}
	for _, variable := range p.variables {
		if name, _, ok := strings.Cut(variable, "="); !ok || name == "" {
			return preloaded{}, fmt.Errorf("variable %q; allowed: NAME=VALUE, separated by spaces", variable)
		}
	}
	return p, nil
}

func (p preloaded) name() string { return p.library }

func (p preloaded) command(limit uint64, dir, program string, args []string) (argv, env []string) {
	replace := strings.NewReplacer(
		"{limit_bytes}", strconv.FormatUint(limit, 10),
		"{limit_mib}", strconv.FormatUint(limit/mib, 10),
		"{run_dir}", dir)
	env = []string{"LD_PRELOAD=" + p.library}
	for _, variable := range p.variables {
		env = append(env, replace.Replace(variable))
	}
	return append([]string{program}, args...), env
}

// newLauncher is ours, unless there is another library. Ours are copied into
// an empty directory, so that a build meanwhile does no harm.
func newLauncher(build, temp, library, variables string) (launcher, error) {
	if library != "" {
		return newPreloaded(library, variables)
	}
	if variables != "" {
		return nil, errors.New("variables are for another library: name it with --library")
	}
	lib := filepath.Join(temp, "lib")
	if err := os.CopyFS(lib, os.DirFS(filepath.Join(build, "lib"))); err != nil {
		return nil, fmt.Errorf("copy the interposer, which make builds: %w", err)
	}
	return ours{filepath.Join(build, "bin", "vgpuctl"), lib}, nil
}

// without is an environment without what would limit programs already.
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
