// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// launcher returns the command lines of programs under a limit.
type launcher interface {
	// command returns a command line, and the environment variables that the command needs in
	// addition to the machine's environment. dir is a directory that only the programs of a point
	// share. The runner removes the directory afterwards.
	command(limit uint64, dir, program string, args []string) (argv, env []string)
	// name returns the name of the library that enforces the limit.
	name() string
}

// groupName is the name of the group of one point's programs, which share a
// limit. Each point has a separate directory of groups.
const groupName = "bench"

// ours runs programs with vgpuctl and the libraries in the directory lib.
type ours struct{ vgpuctl, lib string }

func (o ours) name() string { return "nri-vgpu" }

func (o ours) command(limit uint64, dir, program string, args []string) (argv, env []string) {
	argv = []string{o.vgpuctl, "run", "--memory", strconv.FormatUint(limit, 10), "--group", groupName, "--", program}
	return append(argv, args...), []string{"XDG_RUNTIME_DIR=" + dir, "NRI_VGPU_LIB=" + o.lib}
}

// preloaded runs programs with another library.
type preloaded struct {
	library string
	// variables are NAME=VALUE. command replaces {limit_bytes}, {limit_mib} and {run_dir} by the
	// point's values.
	variables []string
}

// newPreloaded parses the variables from a line of words.
func newPreloaded(library, variables string) (preloaded, error) {
	path, err := filepath.Abs(library)
	if err != nil {
		return preloaded{}, err
	}
	if _, err := os.Stat(path); err != nil {
		return preloaded{}, fmt.Errorf("read the library to compare with: %w", err)
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

// newLauncher returns the launcher for nri-vgpu, or for another library if library is not empty.
// newLauncher copies the libraries of nri-vgpu into an empty directory, so that a concurrent build
// cannot change them.
func newLauncher(build, temp, library, variables string) (launcher, error) {
	if library != "" {
		return newPreloaded(library, variables)
	}
	if variables != "" {
		return nil, errors.New("variables need another library: set --library")
	}
	lib := filepath.Join(temp, "lib")
	if err := os.CopyFS(lib, os.DirFS(filepath.Join(build, "lib"))); err != nil {
		return nil, fmt.Errorf("copy the interposer (make builds the interposer): %w", err)
	}
	return ours{filepath.Join(build, "bin", "vgpuctl"), lib}, nil
}

// without returns an environment without variables that limit programs or
// select a simulation.
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
