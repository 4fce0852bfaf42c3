// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
)

func TestMerge(t *testing.T) {
	container := &api.Container{
		Id: "c", Name: "main",
		Env:         []string{"ONCE=1", "TWICE=image", "GONE=x", "TWICE=pod"},
		Mounts:      []*api.Mount{{Destination: "/kept"}, {Destination: "/replaced", Source: "old"}, {Destination: "/gone"}},
		Annotations: map[string]string{"kept": "1", "gone": "1"},
		CDIDevices:  []*api.CDIDevice{{Name: "a/b=1"}},
		Linux:       &api.LinuxContainer{Devices: []*api.LinuxDevice{{Path: "/dev/a"}}},
	}
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv("ONCE", "2")
	adjust.AddEnv("TWICE", "lost")
	adjust.AddEnv("NEW", "3")
	adjust.RemoveEnv("GONE")
	adjust.AddMount(&api.Mount{Destination: "/replaced", Source: "new"})
	adjust.RemoveMount("/gone")
	adjust.AddAnnotation("new", "2")
	adjust.RemoveAnnotation("gone")
	adjust.AddCDIDevice(&api.CDIDevice{Name: "a/b=2"})
	adjust.AddDevice(&api.LinuxDevice{Path: "/dev/b"})

	got := Merge(container, adjust)
	if diff := cmp.Diff([]string{"ONCE=2", "TWICE=pod", "NEW=3"}, got.Env); diff != "" {
		t.Error(diff)
	}
	var mounts, devices []string
	for _, m := range got.Mounts {
		mounts = append(mounts, m.Destination+m.Source)
	}
	for _, d := range got.CDIDevices {
		devices = append(devices, d.Name)
	}
	for _, d := range got.Linux.Devices {
		devices = append(devices, d.Path)
	}
	if diff := cmp.Diff([]string{"/kept", "/replacednew"}, mounts); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"kept": "1", "new": "2"}, got.Annotations); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a/b=1", "a/b=2", "/dev/a", "/dev/b"}, devices); diff != "" {
		t.Error(diff)
	}
	if Merge(container, nil).GetName() != "main" {
		t.Error("without an adjustment it is another container")
	}
}
