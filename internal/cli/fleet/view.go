// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

const (
	// Viewer is the service account whose tokens users request for nri-vgpu-view.
	Viewer = "nri-vgpu-viewer"
	// viewService names the port of nri-vgpu-view's Service to the API server, with its scheme.
	viewService = "https:nri-vgpu-view:https"
	// tokenSeconds is the lifetime of a viewer's token: the API server's minimum.
	tokenSeconds = 600
)

// errNoRight reports that the user can query agents in neither way.
var errNoRight = errors.New("you may neither create pods/exec in the agents' namespace nor read nri-vgpu-view: ask your administrator for the RoleBinding of docs/how-to/view.md")

// mayExec reports whether the user may run commands in the agents' pods. mayExec queries the API
// server once.
func (f *Fleet) mayExec(ctx context.Context) bool {
	f.execs.Do(func() { f.execs.allowed = f.reviewExec(ctx) })
	return f.execs.allowed
}

// reviewExec reports whether the user may run commands in the agents' pods. If the API server does
// not answer, reviewExec returns true.
func (f *Fleet) reviewExec(ctx context.Context) bool {
	body, err := json.Marshal(authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: f.Namespace, Verb: "create", Resource: "pods", Subresource: "exec"},
	}})
	if err != nil {
		return true
	}
	var review authorizationv1.SelfSubjectAccessReview
	answer, err := f.raw(f.api.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").Body(body)).DoRaw(ctx)
	if err != nil || json.Unmarshal(answer, &review) != nil {
		return true
	}
	return review.Status.Allowed
}

// raw makes a request whose body and answer are JSON that the scheme does not know.
func (f *Fleet) raw(r *rest.Request) *rest.Request {
	return r.SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json")
}

// ViewToken returns a token for nri-vgpu-view, which is valid for at least half of tokenSeconds.
func (f *Fleet) ViewToken(ctx context.Context) (string, error) {
	f.token.Lock()
	defer f.token.Unlock()
	// The clocks of this computer and of the API server may differ.
	if now := time.Now(); now.After(f.token.renew) {
		token, err := f.requestToken(ctx)
		if err != nil {
			return "", err
		}
		f.token.text, f.token.renew = token, now.Add(tokenSeconds*time.Second/2)
	}
	return f.token.text, nil
}

// requestToken requests a token for nri-vgpu-view.
func (f *Fleet) requestToken(ctx context.Context) (string, error) {
	seconds := int64(tokenSeconds)
	body, err := json.Marshal(authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}})
	if err != nil {
		return "", fmt.Errorf("encode the request for a token: %w", err)
	}
	answer, err := f.raw(f.api.Post().Namespace(f.Namespace).Resource("serviceaccounts").Name(Viewer).SubResource("token").Body(body)).DoRaw(ctx)
	switch {
	case apierrors.IsForbidden(err):
		return "", errNoRight
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("nri-vgpu-view is not installed in namespace %s: set view.enabled=true in the chart", f.Namespace)
	case err != nil:
		return "", fmt.Errorf("request a token for nri-vgpu-view: %w", err)
	}
	var token authenticationv1.TokenRequest
	if err := json.Unmarshal(answer, &token); err != nil {
		return "", fmt.Errorf("read the token for nri-vgpu-view: %w", err)
	}
	return token.Status.Token, nil
}

// ViewURL returns the URL at which the API server forwards to nri-vgpu-view, and the transport with
// the user's credentials.
func (f *Fleet) ViewURL() (*url.URL, http.RoundTripper, error) {
	transport, err := rest.TransportFor(f.config)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return f.viewRequest().URL(), transport, nil
}

func (f *Fleet) viewRequest() *rest.Request {
	return f.api.Get().Namespace(f.Namespace).Resource("services").Name(viewService).SubResource("proxy")
}

// view reads the data of all agents from nri-vgpu-view. The error lists the agents that did not
// answer the view.
func (f *Fleet) view(ctx context.Context) ([]agentapi.Overview, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	token, err := f.ViewToken(ctx)
	if err != nil {
		return nil, err
	}
	result := f.viewRequest().Suffix(agentapi.FleetPath).SetHeader(agentapi.TokenHeader, token).Do(ctx)
	if err := result.Error(); err != nil { // with the API server's reason
		return nil, fmt.Errorf("ask nri-vgpu-view: %w", err)
	}
	answer, err := result.Raw()
	if err != nil {
		return nil, fmt.Errorf("ask nri-vgpu-view: %w", err)
	}
	var all agentapi.Fleet
	if err := json.Unmarshal(answer, &all); err != nil {
		return nil, fmt.Errorf("read the answer of nri-vgpu-view: %w", err)
	}
	errs := make([]error, len(all.Errors))
	for i, e := range all.Errors {
		errs[i] = fmt.Errorf("the agent on %s: %s", e.Node, e.Error)
	}
	return all.Overviews, errors.Join(errs...)
}

// followView calls report with the data of nri-vgpu-view once a second.
func (f *Fleet) followView(ctx context.Context, report func(node string, o agentapi.Overview, err error)) {
	for ctx.Err() == nil {
		all, err := f.view(ctx)
		for _, o := range all {
			report(o.Node, o, nil)
		}
		if err != nil && ctx.Err() == nil {
			report("", agentapi.Overview{}, err)
		}
		loop.Sleep(ctx, pace)
	}
}
