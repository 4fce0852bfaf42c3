// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"slices"
	"strings"

	nrigen "github.com/containerd/nri/pkg/runtime-tools/generate"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// specEditor is the generator that the runtimes pass to NRI's generator.
// specEditor applies single changes to an OCI spec as containerd's does.
// Changes that the hook never requests panic, as the embedded interface is nil.
type specEditor struct {
	nrigen.UnderlyingGenerator
	spec *rspec.Spec
	// first is the index of each variable's first entry, among the indexed entries. entries is the
	// number of indexed entries.
	first   map[string]int
	entries int
}

func (e *specEditor) Spec() *rspec.Spec { return e.spec }

func (e *specEditor) AddAnnotation(key, value string) {
	if e.spec.Annotations == nil {
		e.spec.Annotations = map[string]string{}
	}
	e.spec.Annotations[key] = value
}

func (e *specEditor) ClearProcessEnv() { e.spec.Process.Env, e.first, e.entries = nil, nil, 0 }

// AddProcessEnv replaces the first entry of the name. Therefore the change of a variable that
// occurs twice has no effect.
func (e *specEditor) AddProcessEnv(name, value string) {
	entry := name + "=" + value
	e.index()
	if i, found := e.first[name]; found {
		e.spec.Process.Env[i] = entry
		return
	}
	e.spec.Process.Env = append(e.spec.Process.Env, entry)
}

// index indexes the entries added since the last call.
func (e *specEditor) index() {
	if e.first == nil {
		e.first = map[string]int{}
	}
	for ; e.entries < len(e.spec.Process.Env); e.entries++ {
		name, _, assigns := strings.Cut(e.spec.Process.Env[e.entries], "=")
		if _, found := e.first[name]; assigns && !found {
			e.first[name] = e.entries
		}
	}
}

func (e *specEditor) Mounts() []rspec.Mount  { return e.spec.Mounts }
func (e *specEditor) ClearMounts()           { e.spec.Mounts = nil }
func (e *specEditor) AddMount(m rspec.Mount) { e.spec.Mounts = append(e.spec.Mounts, m) }
func (e *specEditor) RemoveMount(dest string) {
	e.spec.Mounts = slices.DeleteFunc(e.spec.Mounts, func(m rspec.Mount) bool { return m.Destination == dest })
}

func (e *specEditor) AddDevice(d rspec.LinuxDevice) {
	e.spec.Linux.Devices = append(e.spec.Linux.Devices, d)
}

func (e *specEditor) RemoveDevice(path string) {
	e.spec.Linux.Devices = slices.DeleteFunc(e.spec.Linux.Devices, func(d rspec.LinuxDevice) bool { return d.Path == path })
}

func (e *specEditor) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	r := e.spec.Linux.Resources
	r.Devices = append(r.Devices, rspec.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Minor: minor, Access: access})
}
