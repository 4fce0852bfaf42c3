// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestEachRightIsNeeded removes each right of the view, of the agents for the view, and of readers.
// Each removal has a visible consequence. The consequence ends when the right returns.
func TestEachRightIsNeeded(t *testing.T) {
	allow(t)
	for name, c := range map[string]struct {
		remove func(*testing.T) (restore func())
		broken func(*testing.T) error
	}{
		"the view lists pods":            {rules("roles", testbed.Namespace, "nri-vgpu-view", 0), readerGets("pods is forbidden")},
		"the view gets /overview":        {rules("clusterroles", "", "nri-vgpu-view", 0), agentAnswers(http.StatusForbidden)},
		"agents have tokens reviewed":    {reviewsWithout("nri-vgpu"), agentAnswers(http.StatusServiceUnavailable)},
		"the view has tokens reviewed":   {reviewsWithout("nri-vgpu-view"), readerGets("currently unable to handle")},
		"viewers get /view/*":            {rules("clusterroles", "", "nri-vgpu-viewer", 0), readerGets("may not get /view/*")},
		"readers request tokens":         {rules("roles", testbed.Namespace, "nri-vgpu-viewer", 0), readerGets("docs/how-to/view.md")},
		"readers connect to the Service": {rules("roles", testbed.Namespace, "nri-vgpu-viewer", 1), readerGets("forbidden")},
	} {
		t.Run(name, func(t *testing.T) {
			eventually.Succeeds(t, patience, "all works with all rights", func(context.Context) error {
				return errors.Join(readerGets("")(t), agentAnswers(http.StatusOK)(t))
			})
			restore := c.remove(t)
			defer restore()
			eventually.Succeeds(t, patience, "the right is missed", func(context.Context) error {
				time.Sleep(time.Second) // the view and the agents review two tokens a second of a client
				return c.broken(t)
			})
		})
	}
}

// rules returns a function that removes a rule of a role.
func rules(resource, namespace, name string, rule int) func(*testing.T) func() {
	return func(t *testing.T) func() {
		t.Helper()
		client := bed.Client.RbacV1().RESTClient()
		raw, err := client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var role struct {
			Rules []rbacv1.PolicyRule `json:"rules"`
		}
		if err := json.Unmarshal(raw, &role); err != nil {
			t.Fatal(err)
		}
		set := func(rules []rbacv1.PolicyRule) {
			t.Helper()
			body, err := json.Marshal(map[string]any{"rules": rules})
			if err != nil {
				t.Fatal(err)
			}
			err = client.Patch(types.MergePatchType).NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name).
				Body(body).Do(context.Background()).Error()
			if err != nil {
				t.Error(err)
			}
		}
		without := append(append([]rbacv1.PolicyRule{}, role.Rules[:rule]...), role.Rules[rule+1:]...)
		set(without)
		return func() { set(role.Rules) }
	}
}

// reviewsWithout returns a function that removes an account's right to have tokens reviewed.
func reviewsWithout(account string) func(*testing.T) func() {
	return func(t *testing.T) func() {
		t.Helper()
		const name = "nri-vgpu-view-reviews"
		bindings := bed.Client.RbacV1().ClusterRoleBindings()
		before, err := bindings.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		set := func(subjects []rbacv1.Subject) {
			t.Helper()
			now, err := bindings.Get(context.Background(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			now.Subjects = subjects
			if _, err := bindings.Update(context.Background(), now, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}
		var others []rbacv1.Subject
		for _, s := range before.Subjects {
			if s.Name != account {
				others = append(others, s)
			}
		}
		if len(others) != len(before.Subjects)-1 {
			t.Fatalf("%s has %v", name, before.Subjects)
		}
		set(others)
		return func() { set(before.Subjects) }
	}
}

// readerGets returns a check that kubectl vgpu fails for a reader with an error that contains a text.
// If the text is "", kubectl vgpu must work. Each call uses a new token.
func readerGets(text string) func(*testing.T) error {
	return func(t *testing.T) error {
		t.Helper()
		_, err := bed.KubectlVgpu(t.Context(), "--as", reader, "get", "gpus")
		switch {
		case text == "":
			return err
		case err == nil:
			return errors.New("kubectl vgpu works")
		case !strings.Contains(err.Error(), text):
			return fmt.Errorf("want an error with %q: %w", text, err)
		default:
			return nil
		}
	}
}

// agentAnswers returns a check that the agent answers the view with a status. Each call uses a new
// token of the view.
func agentAnswers(status int) func(*testing.T) error {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return func(t *testing.T) error {
		t.Helper()
		where := "https://" + net.JoinHostPort(bed.Cluster.Address, "9398") + agentapi.OverviewPath
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, where, nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+tokenOf(t, testbed.Namespace, "nri-vgpu-view", agentapi.OverviewAudience))
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		answer.Body.Close()
		if answer.StatusCode != status {
			return fmt.Errorf("the agent answers %s, want %d", answer.Status, status)
		}
		return nil
	}
}
