package registry

import (
	"regexp"
	"slices"
	"strings"
)

// Place is where a process runs, as its cgroups tell.
type Place struct {
	// PodUID is the runtime's name for the pod; "" for a process outside of
	// all pods.
	PodUID string
	// Container is the runtime's id of the container; "" where the process is
	// in a pod, but in no container of it.
	Container string
	// Cgroup is the path that told, or the process's first one.
	Cgroup string
}

// The names of cgroups, as kubelet and the runtimes make them with either of
// their drivers:
//
//	/kubepods/burstable/pod<uid>/<id>
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope
//	…/crio-<id>.scope/container
//
// A kubelet with a root cgroup of its own has something before or in the name
// of the first.
var (
	kubepodsCgroup  = regexp.MustCompile(`^(?:.+-)?kubepods(?:\.slice)?$`)
	podCgroup       = regexp.MustCompile(`^(?:pod|.+-pod)([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?$`)
	containerCgroup = regexp.MustCompile(`^(?:(?:cri-containerd|crio|docker|libpod)-)?([0-9a-f]{64})(?:\.scope)?$`)
)

// ParseCgroups reads a process's /proc/<pid>/cgroup, of version 1 or 2 or both.
// The outermost names decide: what a container makes below its own cgroup says
// nothing. Where hierarchies of version 1 name different places the process is
// taken for one outside of all pods.
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
	// Seen from a cgroup namespace of its own, what is above has no names.
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

// podUID is the UID in the name of a pod's cgroup; systemd's names have "_"
// where it has "-".
func podUID(name string) string {
	return strings.ReplaceAll(podCgroup.FindStringSubmatch(name)[1], "_", "-")
}
