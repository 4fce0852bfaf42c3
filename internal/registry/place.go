// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"regexp"
	"slices"
	"strings"
)

// Place is the place of a process, by the process's cgroups.
type Place struct {
	// PodUID is the runtime's name of the pod; "" for a process outside of all pods.
	PodUID string
	// Container is the runtime's id of the container; "" for a process outside of a pod's
	// containers.
	Container string
	// Cgroup is the path that names the pod, or the process's first path if no path names a pod.
	Cgroup string
}

// These expressions match the names of cgroups that kubelet and the runtimes create with either
// cgroup driver:
//
//	/kubepods/burstable/pod<uid>/<id>
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope
//	…/crio-<id>.scope/container
//
// A kubelet with a configured root cgroup inserts a name before kubepods, or a prefix into the
// name.
var (
	kubepodsCgroup  = regexp.MustCompile(`^(?:.+-)?kubepods(?:\.slice)?$`)
	podCgroup       = regexp.MustCompile(`^(?:pod|.+-pod)([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?$`)
	containerCgroup = regexp.MustCompile(`^(?:(?:cri-containerd|crio|docker|libpod)-)?([0-9a-f]{64})(?:\.scope)?$`)
)

// ParseCgroups parses a process's /proc/<pid>/cgroup, of version 1 or 2 or both. The outermost
// names decide: ParseCgroups ignores cgroups that a container creates below its cgroup. If
// hierarchies of version 1 name different places, ParseCgroups treats the process as running
// outside of all pods.
func ParseCgroups(content string) Place {
	var found Place
	for line := range strings.Lines(content) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		place := parsePath(fields[2])
		switch {
		case place.PodUID == "":
			if found.Cgroup == "" {
				found.Cgroup = place.Cgroup
			}
		case found.PodUID == "":
			found = place
		case found.PodUID != place.PodUID || found.Container != place.Container:
			return Place{Cgroup: found.Cgroup}
		}
	}
	return found
}

func parsePath(path string) Place {
	place := Place{Cgroup: path}
	names := strings.Split(strings.Trim(path, "/"), "/")
	// A cgroup namespace replaces the names above its root by "..".
	below := names[0] == ".."
	pod := slices.IndexFunc(names, func(name string) bool {
		below = below || kubepodsCgroup.MatchString(name)
		return below && podCgroup.MatchString(name)
	})
	if pod < 0 {
		return place
	}
	place.PodUID = podUID(names[pod])
	if pod+1 < len(names) {
		if m := containerCgroup.FindStringSubmatch(names[pod+1]); m != nil {
			place.Container = m[1]
		}
	}
	return place
}

// podUID returns the UID in the name of a pod's cgroup. systemd's driver writes "_" in place of "-"
// into names.
func podUID(name string) string {
	return strings.ReplaceAll(podCgroup.FindStringSubmatch(name)[1], "_", "-")
}
