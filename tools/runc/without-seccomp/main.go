// SPDX-License-Identifier: Apache-2.0

// Command without-seccomp wraps a runc that was built without libseccomp. That
// runc rejects every container with a system call filter, and Kubernetes sets a
// filter for every pod's sandbox. The command removes the filter from the
// container's specification and executes runc.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// realRunc is the path of the wrapped runc on the node.
const realRunc = "/usr/local/libexec/runc"

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "without-seccomp:", err)
		os.Exit(1)
	}
}

func run(argv []string) error {
	if dir, ok := createdBundle(argv[1:]); ok {
		if err := dropFilter(filepath.Join(dir, "config.json")); err != nil {
			return err
		}
	}
	return fmt.Errorf("execute %s: %w", realRunc, syscall.Exec(realRunc, argv, os.Environ()))
}

// createdBundle returns the bundle of a runc command that creates a container.
func createdBundle(args []string) (dir string, ok bool) {
	dir = "."
	creates := false
	for i, arg := range args {
		switch value, found := strings.CutPrefix(arg, "--bundle="); {
		case found:
			dir = value
		case (arg == "--bundle" || arg == "-b") && i+1 < len(args):
			dir = args[i+1]
		case arg == "create" || arg == "run":
			creates = true
		}
	}
	return dir, creates
}

// dropFilter removes the filter from a specification and keeps the rest
// unchanged.
func dropFilter(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the specification: %w", err)
	}
	var spec, linux map[string]json.RawMessage
	if err := json.Unmarshal(content, &spec); err != nil {
		return fmt.Errorf("decode %s: %w", file, err)
	}
	if err := json.Unmarshal(spec["linux"], &linux); err != nil {
		return fmt.Errorf("decode %s: linux: %w", file, err)
	}
	if _, found := linux["seccomp"]; !found {
		return nil
	}
	delete(linux, "seccomp")
	if spec["linux"], err = json.Marshal(linux); err != nil {
		return fmt.Errorf("encode %s: %w", file, err)
	}
	if content, err = json.Marshal(spec); err != nil {
		return fmt.Errorf("encode %s: %w", file, err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("write the specification: %w", err)
	}
	return nil
}
