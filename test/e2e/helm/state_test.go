// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// state lists possible leftovers of nri-vgpu, one leftover in each element.
type state []string

// watched are directories of the node in which an installation could write. own are directories in
// watched that belong to containerd, kubelet and the pods.
var (
	watched = []string{"/dev", "/etc/cdi", "/etc/cni", "/etc/containerd", "/etc/kubernetes", "/etc/ld.so.preload", "/etc/nri",
		"/etc/nvidia-container-runtime", "/opt", "/run", "/usr/local", "/var/lib/nri-vgpu", "/var/lib/kubelet/device-plugins"}
	// made are directories that the local cluster itself makes for us.
	made = []string{"/opt/nri-vgpu", "/var/lib/nri-vgpu"}
	own  = []string{"/dev/gpusim", "/dev/pts", "/run/containerd", "/run/netns", "/run/nvidia-container-runtime", "/run/runc"}
)

// state returns the node's files, mounts and processes, and all objects of the API except pods and
// the cluster's own bookkeeping.
func (s *suite) state() state {
	s.Helper()
	var all state
	root := s.bed.Cluster.Root()
	for _, dir := range watched {
		// Some files disappear during the walk.
		_ = filepath.WalkDir(root+dir, func(path string, _ fs.DirEntry, err error) error {
			name := strings.TrimPrefix(path, root)
			if slices.Contains(own, name) {
				return fs.SkipDir
			}
			if err == nil && !slices.Contains(made, name) {
				all = append(all, "file "+name)
			}
			return nil
		})
	}
	all = append(all, s.mounts()...)
	for _, pid := range s.guards() {
		all = append(all, "process "+strconv.Itoa(pid))
	}
	all = append(all, s.objects()...)
	all = append(all, s.node()...)
	slices.Sort(all)
	return slices.Compact(all)
}

// mounts returns the node's mounts, except the mounts of containers.
func (s *suite) mounts() []string {
	content, err := os.ReadFile(filepath.Join(filepath.Dir(s.bed.Cluster.Root()), "mountinfo"))
	s.must(err)
	var all []string
	for line := range strings.Lines(string(content)) {
		point := strings.Fields(line)[4]
		if !strings.HasPrefix(point, "/run/containerd/") && !strings.HasPrefix(point, "/var/lib/kubelet/pods/") && !strings.HasPrefix(point, "/run/netns/") {
			all = append(all, "mount "+point)
		}
	}
	return all
}

// guards returns the processes of the guard and its stand-in, by their pids on this machine.
func (s *suite) guards() []int {
	var pids []int
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	s.must(err)
	cluster := "/nri-vgpu-clusters/" + s.bed.Cluster.NodeName
	for _, file := range files {
		cgroup, err := os.ReadFile(file)
		command, commandErr := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if err != nil || commandErr != nil || !strings.Contains(string(cgroup), cluster) {
			continue
		}
		program, _, _ := strings.Cut(string(command), "\x00")
		if strings.Contains(filepath.Base(program), "nri-vgpu-guard") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			s.must(err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// bookkeeping lists kinds of objects that Kubernetes creates and deletes by itself.
var bookkeeping = []string{"events", "leases", "pods", "controllerrevisions", "endpointslices", "componentstatuses"}

// objects returns all objects of the API, by kind and name.
func (s *suite) objects() []string {
	config := s.bed.Cluster.RestConfig()
	config.WarningHandler = rest.NoWarnings{}
	finder, err := discovery.NewDiscoveryClientForConfig(config)
	s.must(err)
	client, err := dynamic.NewForConfig(config)
	s.must(err)
	lists, err := discovery.ServerPreferredResources(finder)
	s.must(err)
	var all []string
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		s.must(err)
		for i := range list.APIResources {
			r := &list.APIResources[i]
			if slices.Contains(bookkeeping, r.Name) || !slices.Contains(r.Verbs, "list") {
				continue
			}
			found, err := client.Resource(version.WithResource(r.Name)).List(s.Context(), metav1.ListOptions{})
			s.must(err)
			for k := range found.Items {
				all = append(all, fmt.Sprintf("object %s %s/%s", r.Name, found.Items[k].GetNamespace(), found.Items[k].GetName()))
			}
		}
	}
	return all
}

// node returns the fields of the Node besides its name.
func (s *suite) node() []string {
	node, err := s.bed.Node(s.Context())
	s.must(err)
	var all []string
	for key := range node.Labels {
		all = append(all, "node's label "+key)
	}
	for key := range node.Annotations {
		all = append(all, "node's annotation "+key)
	}
	for _, taint := range node.Spec.Taints {
		all = append(all, "node's taint "+taint.Key)
	}
	for _, condition := range node.Status.Conditions {
		all = append(all, "node's condition "+string(condition.Type))
	}
	for _, list := range []corev1.ResourceList{node.Status.Capacity, node.Status.Allocatable} {
		for name := range list {
			all = append(all, "node's resource "+string(name))
		}
	}
	return all
}

// since returns the differences from an earlier state.
func (now state) since(before state) []string {
	var all []string
	for _, line := range now {
		if !slices.Contains(before, line) {
			all = append(all, "+ "+line)
		}
	}
	for _, line := range before {
		if !slices.Contains(now, line) {
			all = append(all, "- "+line)
		}
	}
	return all
}

// stillUsed reports whether a line belongs to running pods: their files, the libraries, and the
// guard.
func (w *work) stillUsed(line string) bool {
	if strings.HasPrefix(line, "+ process ") {
		return len(w.guards()) == 2
	}
	path, file := strings.CutPrefix(line, "+ file ")
	if mount, ok := strings.CutPrefix(line, "+ mount "); ok {
		path = mount
	} else if !file {
		return false
	}
	for _, dir := range append(w.files(), "/opt/nri-vgpu", "/opt/nri/plugins/99-nri-vgpu-guard") {
		if strings.HasPrefix(path, dir) {
			return true
		}
	}
	return slices.Contains([]string{"/opt/nri", "/opt/nri/plugins", "/run/nri-vgpu", "/run/nri-vgpu/containers", "/run/nri-vgpu/usage", "/run/nri-vgpu/agent", "/run/nri-vgpu/guard.json"}, path)
}

// checkLeft checks that only the files that running pods use remain.
func (s *suite) checkLeft(before state, w *work) {
	s.Helper()
	s.settles(before, "that no pod uses", func(difference []string) []string {
		return slices.DeleteFunc(difference, w.stillUsed)
	})
}

// checkNothingLeft checks that the node and the API are as before.
func (s *suite) checkNothingLeft(before state) {
	s.Helper()
	s.settles(before, "of nri-vgpu", func(difference []string) []string { return difference })
}

// settles waits until no file remains. Objects of namespaces and DaemonSets disappear some time
// after the namespaces and DaemonSets.
func (s *suite) settles(before state, what string, left func([]string) []string) {
	s.Helper()
	var difference []string
	ok := false
	for range 60 {
		if difference = left(s.state().since(before)); len(difference) == 0 {
			ok = true
			break
		}
		s.pause()
	}
	if !ok {
		s.Errorf("these objects are left %s:\n%s", what, strings.Join(difference, "\n"))
	}
}
