package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// newer is an allocation as a release with more fields writes it.
const newer = `{"podUID":"u","namespace":"shop","pod":"web","container":"main","kind":"regular","position":1,"dialect":"nri-vgpu",` +
	`"cats":{"count":3},"devices":[{"uuid":"` + gpuA + `","memoryBytes":1073741824,"computePPM":300000,"slots":1,"dogs":["Rex"]}]}`

// known is what this release reads of it.
func known() placement.Allocation {
	return placement.Allocation{PodUID: "u", Namespace: "shop", Pod: "web", Container: "main", Kind: request.Kind("regular"),
		Position: 1, Dialect: "nri-vgpu", Devices: []placement.Device{{UUID: gpuA, MemoryBytes: 1 << 30, ComputePPM: 300_000, Slots: 1}}}
}

// storeWith has an assignment of container main of pod u.
func storeWith(t *testing.T, content string) (*Store, string) {
	t.Helper()
	store, err := NewStore(filepath.Join(t.TempDir(), "containers"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(store.dir, "u", "main", assignmentFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return store, path
}

// After a rollback the agent restores what an agent with more fields wrote.
func TestNewFieldsOfAnAssignmentAreIgnored(t *testing.T) {
	store, _ := storeWith(t, fmt.Sprintf(`{"version":1,"next":true,"sha256":%q,"allocation":%s}`, checksum([]byte(newer)), newer))
	allocations, errs := store.Load()
	if diff := cmp.Diff([]placement.Allocation{known()}, allocations); diff != "" || len(errs) > 0 {
		t.Errorf("%v (-want +got):\n%s", errs, diff)
	}
	// The annotation of a running container has the same content.
	var a placement.Allocation
	if err := json.Unmarshal([]byte(newer), &a); err != nil || !cmp.Equal(known(), a) {
		t.Errorf("the annotation is read as %+v: %v", a, err)
	}
}

// An assignment in a format of a newer release stays for that release, until the
// container is given something by this one.
func TestAssignmentsOfANewerReleaseStay(t *testing.T) {
	content := fmt.Sprintf(`{"version":%d,"sha256":"","gpus":[]}`, assignmentVersion+1)
	store, path := storeWith(t, content)
	for range 2 {
		allocations, errs := store.Load()
		if len(allocations) > 0 || len(errs) != 1 || !errors.Is(errs[0], errAssignmentVersion) || !strings.Contains(errs[0].Error(), path) {
			t.Errorf("got %v, %v", allocations, errs)
		}
		if kept, err := os.ReadFile(path); err != nil || string(kept) != content {
			t.Fatalf("%s has %q: %v", path, kept, err)
		}
	}
	if err := store.Reserve(known().PodUID, []placement.Allocation{known()}); err != nil {
		t.Fatal(err)
	}
	if allocations, errs := store.Load(); !cmp.Equal([]placement.Allocation{known()}, allocations) || len(errs) != 1 {
		t.Errorf("reserved are %+v: %v", allocations, errs)
	}
}

// What a container was given is known without its pages.
func TestGivenIsKnownWithoutPages(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=1024")
	mustCreate(t, n, "u")
	dir, err := n.hook.Store.Dir("u", "main")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if given := n.hook.Given(dir); len(given) != 1 || given[0].UUID != gpuA || given[0].MemoryBytes != 1024*mib {
		t.Errorf("it was given %+v", given)
	}
	if given := n.hook.Given(filepath.Join(filepath.Dir(dir), "other")); len(given) != 0 {
		t.Errorf("another was given %+v", given)
	}
}
