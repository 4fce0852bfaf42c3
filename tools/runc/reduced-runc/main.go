// SPDX-License-Identifier: Apache-2.0

// Command reduced-runc wraps runc on a machine that cannot fulfil every
// specification of Kubernetes. The command removes these parts of a container's
// specification and executes runc:
//
//   - the system call filter, if runc was built without libseccomp and therefore
//     rejects every filter;
//   - the capability CAP_SYS_RESOURCE, and an oom_score_adj below the command's
//     own, if the machine does not grant that capability;
//   - limits of huge pages, if the machine mounts no cgroups for them.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// realRunc is the path of the wrapped runc on the node.
const realRunc = "/usr/local/libexec/runc"

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "reduced-runc:", err)
		os.Exit(1)
	}
}

func run(argv []string) error {
	if dir, ok := createdBundle(argv[1:]); ok {
		l, err := machineLimits()
		if err != nil {
			return err
		}
		if err := l.reduce(filepath.Join(dir, "config.json")); err != nil {
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

// limits are what the machine denies.
type limits struct {
	noFilter, noHugePages, noSysResource bool
	// oomScore is the command's own oom_score_adj.
	oomScore int
}

// machineLimits returns the machine's limits.
func machineLimits() (limits, error) {
	l := limits{noFilter: withoutSeccomp, noHugePages: withoutHugePages("/sys/fs/cgroup"), noSysResource: withoutSysResource()}
	content, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return l, fmt.Errorf("read the command's oom_score_adj: %w", err)
	}
	if l.oomScore, err = strconv.Atoi(strings.TrimSpace(string(content))); err != nil {
		return l, fmt.Errorf("read the command's oom_score_adj: %w", err)
	}
	return l, nil
}

// withoutSysResource reports whether the command lacks CAP_SYS_RESOURCE.
func withoutSysResource() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	return err != nil || sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0
}

// withoutHugePages reports whether the cgroups below root have version 1 and no
// hierarchy for huge pages.
func withoutHugePages(root string) bool {
	_, v2 := os.Stat(filepath.Join(root, "cgroup.controllers"))
	_, mounted := os.Stat(filepath.Join(root, "hugetlb"))
	return v2 != nil && mounted != nil
}

// object is a JSON object whose values stay undecoded.
type object map[string]json.RawMessage

// reduce changes a specification to fit the machine's limits, and keeps the
// rest unchanged.
func (l limits) reduce(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the specification: %w", err)
	}
	var spec object
	if err := json.Unmarshal(content, &spec); err != nil {
		return fmt.Errorf("decode %s: %w", file, err)
	}
	restricted, err := spec.edit("linux", l.dropRestrictions)
	if err != nil {
		return fmt.Errorf("change %s: %w", file, err)
	}
	weakened, err := spec.edit("process", l.dropSysResource)
	if err != nil {
		return fmt.Errorf("change %s: %w", file, err)
	}
	if !restricted && !weakened {
		return nil
	}
	if content, err = json.Marshal(spec); err != nil {
		return fmt.Errorf("encode %s: %w", file, err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("write the specification: %w", err)
	}
	return nil
}

// edit applies a change to the object at a key, and reports whether the object
// changed.
func (o object) edit(key string, change func(object) (bool, error)) (changed bool, err error) {
	if o[key] == nil {
		return false, nil
	}
	var inner object
	if err := json.Unmarshal(o[key], &inner); err != nil {
		return false, fmt.Errorf("decode %s: %w", key, err)
	}
	if changed, err = change(inner); err != nil || !changed {
		return false, err
	}
	if o[key], err = json.Marshal(inner); err != nil {
		return false, fmt.Errorf("encode %s: %w", key, err)
	}
	return true, nil
}

// dropRestrictions removes the system call filter if runc rejects filters, and
// the limits of huge pages if the machine has no cgroups for them.
func (l limits) dropRestrictions(linux object) (bool, error) {
	filtered := l.noFilter && linux.drop("seccomp")
	limited, err := linux.edit("resources", func(resources object) (bool, error) {
		return l.noHugePages && resources.drop("hugepageLimits"), nil
	})
	return filtered || limited, err
}

// drop removes a key, and reports whether the key existed.
func (o object) drop(key string) bool {
	_, found := o[key]
	delete(o, key)
	return found
}

// dropSysResource removes the capability CAP_SYS_RESOURCE if the machine does
// not grant the capability. dropSysResource then also raises the oom_score_adj to
// the lowest that a process without the capability can set.
func (l limits) dropSysResource(process object) (bool, error) {
	if !l.noSysResource {
		return false, nil
	}
	dropped, err := process.edit("capabilities", dropCapability)
	if err != nil || process["oomScoreAdj"] == nil {
		return dropped, err
	}
	score, err := strconv.Atoi(string(process["oomScoreAdj"]))
	if err != nil {
		return false, fmt.Errorf("decode oomScoreAdj: %w", err)
	}
	if score >= l.oomScore {
		return dropped, nil
	}
	process["oomScoreAdj"] = json.RawMessage(strconv.Itoa(l.oomScore))
	return true, nil
}

// dropCapability removes CAP_SYS_RESOURCE from all sets of capabilities.
func dropCapability(sets object) (changed bool, err error) {
	for name, raw := range sets {
		var set []string
		if err := json.Unmarshal(raw, &set); err != nil {
			return false, fmt.Errorf("decode %s: %w", name, err)
		}
		kept := slices.DeleteFunc(slices.Clone(set), func(c string) bool { return c == "CAP_SYS_RESOURCE" })
		if len(kept) == len(set) {
			continue
		}
		if sets[name], err = json.Marshal(kept); err != nil {
			return false, fmt.Errorf("encode %s: %w", name, err)
		}
		changed = true
	}
	return changed, nil
}
